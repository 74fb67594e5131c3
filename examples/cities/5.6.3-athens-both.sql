-- Query 5.6.3: "Follow the readings of temperature and humidity of Athens, over the last 20 readings of
-- that city."  Both partitioned windows can be shared with the same query about other cities.

CREATE SINK screen USING console;

CREATE STREAM s (id INT, sensor INT, city STRING, t BIGINT, stamp STRING, temperature DOUBLE)
  USING replay OPTIONS (path 'examples/cities/data/temperature.txt', rate '500')
  TIMESTAMP BY t;

CREATE STREAM r (id INT, sensor INT, city STRING, t BIGINT, stamp STRING, humidity DOUBLE)
  USING replay OPTIONS (path 'examples/cities/data/humidity.txt', rate '500')
  TIMESTAMP BY t;

CREATE QUERY athens_both INTO screen AS
  SELECT s.t, s.temperature, r.humidity
  FROM s [PARTITION BY city ROWS 20] JOIN r [PARTITION BY city ROWS 20] ON s.city = r.city
  WHERE s.city = 'ATHENS';
