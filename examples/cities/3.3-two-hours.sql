-- Example 3.3: "In stock-market applications, users may be interested at every moment in the
-- fluctuation of shares over the last two hours."  A sliding window.

CREATE SINK screen USING console;

CREATE STREAM trades (share STRING, price DOUBLE, volume INT, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/trades.csv', rate '500')
  TIMESTAMP BY t;

CREATE QUERY fluctuation INTO screen AS
  SELECT share, MAX(price) - MIN(price) AS spread, AVG(price) AS mean
  FROM trades [RANGE 2 HOURS]
  GROUP BY share;

-- The same question to the sensors.

CREATE STREAM temperature (sensor INT, city STRING, celsius DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/temperature.csv', rate '500')
  TIMESTAMP BY t;

CREATE QUERY fluctuation_of_cities INTO screen AS
  SELECT city, MAX(celsius) - MIN(celsius) AS spread, AVG(celsius) AS mean
  FROM temperature [RANGE 2 HOURS]
  GROUP BY city;
