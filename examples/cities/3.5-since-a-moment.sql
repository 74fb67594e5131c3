-- Example 3.5: "A query can also follow the movement of some shares from a moment of interest on."
-- A landmark window.

CREATE SINK screen USING console;

CREATE STREAM trades (share STRING, price DOUBLE, volume INT, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/trades.csv', rate '500')
  TIMESTAMP BY t;

CREATE QUERY since_midnight INTO screen AS
  SELECT share, COUNT(*) AS trades, MIN(price) AS low, MAX(price) AS high
  FROM trades [AFTER TIMESTAMP '2004-02-01 00:00:00']
  WHERE share IN ('ALFA', 'DELT', 'NIKI')
  GROUP BY share;

-- The same question to the sensors.

CREATE STREAM temperature (sensor INT, city STRING, celsius DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/temperature.csv', rate '500')
  TIMESTAMP BY t;

CREATE QUERY cities_since_midnight INTO screen AS
  SELECT city, COUNT(*) AS readings, MIN(celsius) AS coldest
  FROM temperature [AFTER TIMESTAMP '2004-02-01 00:00:00']
  WHERE city IN ('ATHENS', 'LARISSA', 'IOANNINA')
  GROUP BY city;
