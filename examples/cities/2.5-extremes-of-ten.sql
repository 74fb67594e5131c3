-- Example 2.5: "At any moment, the greatest and the least humidity among the last 10 readings that
-- came in as a stream."

CREATE SINK screen USING console;

CREATE STREAM humidity (sensor INT, city STRING, percent DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/humidity.csv', rate '500')
  TIMESTAMP BY t;

CREATE QUERY extremes INTO screen AS
  SELECT MAX(percent) AS greatest, MIN(percent) AS least
  FROM humidity [ROWS 10];
