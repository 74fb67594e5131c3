-- The control room of a hydro-power company: twelve continuous queries over four streams and two tables.
-- `make demo` makes the data and runs this file.  By hand, from the root of the repository:
--   python examples/control_room/generate.py
--   penstock run examples/control_room/control_room.sql --checkpoint demo-output/checkpoint
-- It ends when all streams have ended.  That of alarms raised by hand ends when somebody says so:
--   penstock push calls --finish --checkpoint demo-output/checkpoint

CREATE SINK late USING jsonl OPTIONS (path 'demo-output/answers/late');

CREATE STREAM telemetry (turbine INT, plant INT, power DOUBLE, rpm DOUBLE, bearing DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'demo-output/data/telemetry.csv', speed '180')
  TIMESTAMP BY t SLACK 3 SECONDS LATE INTO late;   -- the network shuffles rows a little

CREATE STREAM frequency (region STRING, hertz DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'demo-output/data/frequency.csv', speed '180')
  TIMESTAMP BY t;

CREATE STREAM status (turbine INT, code STRING, severity INT, text STRING, t TIMESTAMP)
  USING replay OPTIONS (path 'demo-output/data/status.csv', speed '180')
  TIMESTAMP BY t PRIORITY CASE WHEN severity = 3 THEN 10 ELSE 0 END;   -- alarms first

CREATE STREAM calls (turbine INT, text STRING, raised DOUBLE, t TIMESTAMP)   -- alarms raised by hand
  USING memory TIMESTAMP BY t PRIORITY 20;

CREATE TABLE plants (plant INT, name STRING, region STRING, rated_mw DOUBLE)
  USING csv OPTIONS (path 'demo-output/data/plants.csv', header 'true');

CREATE TABLE machines (turbine INT, plant STRING, region STRING)
  USING csv OPTIONS (path 'demo-output/data/machines.csv', header 'true');

-- 1. Partitioned window, join with a table, view: what every plant gives at this moment.
CREATE VIEW now_running AS SELECT * FROM telemetry [PARTITION BY turbine ROWS 1];

CREATE SINK plant_output USING jsonl OPTIONS (path 'demo-output/answers/plant_output', changes 'view');
CREATE QUERY plant_output INTO plant_output AS
  SELECT p.name, p.region, SUM(n.power) AS megawatts, 100 * SUM(n.power) / p.rated_mw AS percent
  FROM now_running n JOIN plants p ON n.plant = p.plant
  GROUP BY p.name, p.region, p.rated_mw;

-- 2. Row window: the grid over the last 40 readings, whenever they came.
CREATE SINK grid USING jsonl OPTIONS (path 'demo-output/answers/grid', changes 'log');
CREATE QUERY grid INTO grid AS
  SELECT AVG(hertz) AS mean, MIN(hertz) AS lowest, MAX(hertz) AS highest
  FROM frequency [ROWS 40];

-- 3. Sliding window: the hottest bearing of each plant over five minutes, every half minute.
CREATE SINK bearings USING jsonl OPTIONS (path 'demo-output/answers/bearings');
CREATE QUERY bearings INTO bearings AS
  SELECT p.name, MAX(t.bearing) AS hottest, AVG(t.bearing) AS mean
  FROM telemetry [RANGE 5 MINUTES SLIDE 30 SECONDS] t JOIN plants p ON t.plant = p.plant
  GROUP BY p.name;

-- 4. Tumbling window: the energy of each region in every ten minutes (a reading stands for 10 s).
CREATE SINK energy USING jsonl OPTIONS (path 'demo-output/answers/energy');
CREATE QUERY energy INTO energy AS
  RSTREAM (
    SELECT p.region, SUM(t.power) * 10 / 3600 AS megawatt_hours
    FROM telemetry [RANGE 10 MINUTES SLIDE 10 MINUTES] t JOIN plants p ON t.plant = p.plant
    GROUP BY p.region);

-- 5. Landmark: messages by severity since the day shift began at 06:30.
CREATE SINK day_shift USING jsonl OPTIONS (path 'demo-output/answers/day_shift', changes 'view');
CREATE QUERY day_shift INTO day_shift AS
  SELECT severity, COUNT(*) AS messages
  FROM status [AFTER TIMESTAMP '2024-03-11 06:30:00']
  GROUP BY severity;

-- 6. Join of two streams: every alarm, with the hottest its bearing was in the ten minutes before.
CREATE SINK alarms USING jsonl OPTIONS (path 'demo-output/answers/alarms');
CREATE QUERY alarms INTO alarms AS
  ISTREAM (
    SELECT s.turbine, s.code, heat.hottest, s.text
    FROM status [NOW] s
    JOIN (SELECT turbine, MAX(bearing) AS hottest FROM telemetry [RANGE 10 MINUTES] GROUP BY turbine) heat
      ON s.turbine = heat.turbine
    WHERE s.severity = 3);

-- 7. EXCEPT: turbines that run hot, but sent no warning in the last ten minutes.
CREATE SINK unnoticed USING jsonl OPTIONS (path 'demo-output/answers/unnoticed');
CREATE QUERY unnoticed INTO unnoticed AS
  SELECT turbine FROM now_running WHERE bearing > 72
  EXCEPT
  SELECT turbine FROM status [RANGE 10 MINUTES] WHERE severity >= 2;

-- 8. ISTREAM: each time that a region's frequency falls below the limit.
CREATE SINK dips USING jsonl OPTIONS (path 'demo-output/answers/dips');
CREATE QUERY dips INTO dips AS
  ISTREAM (SELECT region, hertz FROM frequency [PARTITION BY region ROWS 1] WHERE hertz < 49.9);

-- 9. ORDER BY and LIMIT on a stream: the five hottest turbines, once a minute.
CREATE SINK hottest USING jsonl OPTIONS (path 'demo-output/answers/hottest');
CREATE QUERY hottest INTO hottest AS
  RSTREAM (
    SELECT turbine, MAX(bearing) AS bearing
    FROM telemetry [RANGE 2 MINUTES SLIDE 1 MINUTE]
    GROUP BY turbine
    ORDER BY bearing DESC
    LIMIT 5);

-- 10. By the lane: every trip and where it is, on the screen before any batch has it.
CREATE SINK trips USING jsonl OPTIONS (path 'demo-output/answers/trips');
CREATE QUERY trips INTO trips AS
  ISTREAM (
    SELECT s.turbine, m.plant, s.code, s.t
    FROM status [NOW] s JOIN machines m ON s.turbine = m.turbine
    WHERE s.severity = 3);

-- 11. By the lane: an alarm raised by hand, joined with the newest readings of its bearing.
CREATE SINK desk USING jsonl OPTIONS (path 'demo-output/answers/desk');
CREATE QUERY desk INTO desk AS
  ISTREAM (
    SELECT c.turbine, m.plant, c.text, c.raised, c.t, r.bearing, r.t AS measured
    FROM calls [NOW] c
    JOIN machines m ON c.turbine = m.turbine
    JOIN telemetry [RANGE 1 MINUTE] r ON c.turbine = r.turbine);

-- 12. The same alarms with the hottest of ten minutes: an aggregate, so it comes with its batch.
CREATE SINK desk_heat USING jsonl OPTIONS (path 'demo-output/answers/desk_heat');
CREATE QUERY desk_heat INTO desk_heat AS
  ISTREAM (
    SELECT c.turbine, c.raised, c.t, heat.hottest
    FROM calls [NOW] c
    JOIN (SELECT turbine, MAX(bearing) AS hottest FROM telemetry [RANGE 10 MINUTES] GROUP BY turbine) heat
      ON c.turbine = heat.turbine);
