-- Example 2.3: "Determine continuously the 10 shares with the greatest rise in the last 10 minutes."
-- The rise is the latest price less the lowest of the last ten minutes.

CREATE SINK screen USING console;

CREATE STREAM trades (share STRING, price DOUBLE, volume INT, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/trades.csv', rate '500')
  TIMESTAMP BY t;

CREATE QUERY rising_shares INTO screen AS
  SELECT latest.share, latest.price - low.lowest AS rise
  FROM trades [PARTITION BY share ROWS 1] latest
  JOIN (SELECT share, MIN(price) AS lowest FROM trades [RANGE 10 MINUTES] GROUP BY share) low
    ON latest.share = low.share
  ORDER BY rise DESC
  LIMIT 10;

-- The same question to the sensors: where did it grow warmer in the last hour?

CREATE STREAM temperature (sensor INT, city STRING, celsius DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/temperature.csv', rate '500')
  TIMESTAMP BY t;

CREATE QUERY rising_cities INTO screen AS
  SELECT latest.city, latest.celsius - low.lowest AS rise
  FROM temperature [PARTITION BY city ROWS 1] latest
  JOIN (SELECT city, MIN(celsius) AS lowest FROM temperature [RANGE 1 HOUR] GROUP BY city) low
    ON latest.city = low.city
  ORDER BY rise DESC
  LIMIT 10;
