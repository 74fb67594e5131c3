-- Example 1.1: "Process the temperature readings that a sensor sends, to follow the average
-- temperature over the last half hour, until the end of this query is asked for."

CREATE SINK screen USING console;

CREATE STREAM temperature (sensor INT, city STRING, celsius DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/temperature.csv', rate '500')
  TIMESTAMP BY t;

CREATE QUERY half_hour_average INTO screen AS
  SELECT AVG(celsius) AS mean
  FROM temperature [RANGE 30 MINUTES]
  WHERE sensor = 10;
