"""What Holdover says about a model: facts as JSON, tables, pictures and a page. Counts and draws; decides nothing."""
