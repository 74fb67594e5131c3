-- Example 1.4.2: Gigascope lets people write functions of their own and offer them to others as views.
-- The Python is in weather.py beside this script: a scalar function, and an aggregate.

CREATE SINK screen USING console;

CREATE FUNCTION feels_like (celsius DOUBLE, percent DOUBLE) RETURNS DOUBLE
  USING 'weather:feels_like' TAKES NUMPY;
CREATE FUNCTION decayed (value DOUBLE, seconds DOUBLE) RETURNS DOUBLE USING 'weather:Decayed';

CREATE STREAM temperature (sensor INT, city STRING, celsius DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/temperature.csv', rate '500')
  TIMESTAMP BY t;
CREATE STREAM humidity (sensor INT, city STRING, percent DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/humidity.csv', rate '500')
  TIMESTAMP BY t;

CREATE VIEW comfort AS  -- whoever reads it need not know of any function
  SELECT c.city, feels_like(c.celsius, h.percent) AS felt
  FROM temperature [PARTITION BY city ROWS 1] c
  JOIN humidity [PARTITION BY city ROWS 1] h ON c.city = h.city;

CREATE QUERY mildest INTO screen AS SELECT city, felt FROM comfort ORDER BY felt DESC LIMIT 3;

CREATE QUERY trend INTO screen AS
  SELECT city, decayed(celsius, unix_seconds(t)) AS lately, AVG(celsius) AS mean
  FROM temperature [RANGE 2 HOURS SLIDE 15 MINUTES]
  GROUP BY city;
