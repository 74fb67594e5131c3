-- Example 4.1: "From a network of spatially distributed sensors, readings come in two streams:
-- <timestamp, city, temperature> and <timestamp, city, humidity>.  There is one sensor of each kind in
-- every city.  With sliding windows over both, join them by city to <timestamp, city, humidity,
-- temperature>."  Times are seconds; the windows hold the last fifteen minutes.

CREATE SINK screen USING console;

CREATE STREAM s (id INT, sensor INT, city STRING, t BIGINT, stamp STRING, temperature DOUBLE)
  USING replay OPTIONS (path 'examples/cities/data/temperature.txt', rate '500')
  TIMESTAMP BY t;

CREATE STREAM r (id INT, sensor INT, city STRING, t BIGINT, stamp STRING, humidity DOUBLE)
  USING replay OPTIONS (path 'examples/cities/data/humidity.txt', rate '500')
  TIMESTAMP BY t;

CREATE QUERY both INTO screen AS
  SELECT GREATEST(s.t, r.t) AS t, s.city, r.humidity, s.temperature
  FROM s [RANGE 900] JOIN r [RANGE 900] ON s.city = r.city;
