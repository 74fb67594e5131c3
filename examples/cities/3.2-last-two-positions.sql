-- Example 3.2: "When following the tracks of a fleet of vehicles, determine continuously the last two
-- positions of each vehicle, to estimate the speed of each."  A partitioned window.

CREATE SINK screen USING console;

CREATE STREAM positions (vehicle INT, x DOUBLE, y DOUBLE, t BIGINT)
  USING replay OPTIONS (path 'examples/cities/data/positions.csv', rate '500')
  TIMESTAMP BY t;

CREATE VIEW last_two AS SELECT * FROM positions [PARTITION BY vehicle ROWS 2];

CREATE QUERY speed INTO screen AS
  SELECT a.vehicle,
         SQRT((b.x - a.x) * (b.x - a.x) + (b.y - a.y) * (b.y - a.y)) / (b.t - a.t) AS metres_per_second
  FROM last_two a JOIN last_two b ON a.vehicle = b.vehicle
  WHERE a.t < b.t;

-- The same question to the sensors: how fast does each one's temperature change, per hour?

CREATE STREAM s (id INT, sensor INT, city STRING, t BIGINT, stamp STRING, temperature DOUBLE)
  USING replay OPTIONS (path 'examples/cities/data/temperature.txt', rate '500')
  TIMESTAMP BY t;

CREATE VIEW last_two_readings AS SELECT * FROM s [PARTITION BY sensor ROWS 2];

CREATE QUERY change_per_hour INTO screen AS
  SELECT a.city, (b.temperature - a.temperature) * 3600 / (b.t - a.t) AS degrees
  FROM last_two_readings a JOIN last_two_readings b ON a.sensor = b.sensor
  WHERE a.t < b.t;
