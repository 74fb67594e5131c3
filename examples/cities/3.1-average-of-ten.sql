-- Example 3.1: "In a network of spatially distributed sensors that send their readings at random
-- moments, compute the average temperature of the last 10 readings."  A row window.

CREATE SINK screen USING console;

CREATE STREAM temperature (sensor INT, city STRING, celsius DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/temperature.csv', rate '500')
  TIMESTAMP BY t;

CREATE QUERY average_of_ten INTO screen AS
  SELECT AVG(celsius) AS mean
  FROM temperature [ROWS 10];
