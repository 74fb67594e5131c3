-- Example 2.1: "Compute the current average temperature of a city from the readings of spatially
-- distributed sensors."  The latest reading of each of the city's sensors counts.

CREATE SINK screen USING console;

CREATE STREAM temperature (sensor INT, city STRING, celsius DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/temperature.csv', rate '500')
  TIMESTAMP BY t;

CREATE QUERY average_of_athens INTO screen AS
  SELECT AVG(celsius) AS mean, COUNT(*) AS sensors
  FROM temperature [PARTITION BY sensor ROWS 1]
  WHERE city = 'ATHENS';
