-- Example 3.4: "Users may not need to be told at every moment.  Every fifteen minutes they wish to see
-- summary statistics of the shares that moved in the last quarter of an hour."  A tumbling window.

CREATE SINK screen USING console;

CREATE STREAM trades (share STRING, price DOUBLE, volume INT, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/trades.csv', rate '500')
  TIMESTAMP BY t;

CREATE QUERY quarter INTO screen AS
  RSTREAM (
    SELECT share, COUNT(*) AS trades, SUM(volume) AS volume, MIN(price) AS low, MAX(price) AS high
    FROM trades [RANGE 15 MINUTES SLIDE 15 MINUTES]
    GROUP BY share);

-- The same question to the sensors.

CREATE STREAM temperature (sensor INT, city STRING, celsius DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/temperature.csv', rate '500')
  TIMESTAMP BY t;

CREATE QUERY quarter_of_cities INTO screen AS
  RSTREAM (
    SELECT city, COUNT(*) AS readings, MIN(celsius) AS low, AVG(celsius) AS mean, MAX(celsius) AS high
    FROM temperature [RANGE 15 MINUTES SLIDE 15 MINUTES]
    GROUP BY city);
