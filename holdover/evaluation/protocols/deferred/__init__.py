"""Does decode from a log say what dense decode says, over long generations (DeltaLog, §5.5)?"""
