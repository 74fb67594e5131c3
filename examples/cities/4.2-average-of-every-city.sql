-- Example 4.2: "Process continuously the readings that sensors of several cities send, to follow the
-- average temperature of each city over the last half hour."

CREATE SINK screen USING console;

CREATE STREAM temperature (sensor INT, city STRING, celsius DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/temperature.csv', rate '500')
  TIMESTAMP BY t;

CREATE QUERY average_of_every_city INTO screen AS
  SELECT city, AVG(celsius) AS mean
  FROM temperature [RANGE 30 MINUTES]
  GROUP BY city;
