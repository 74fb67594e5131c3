-- Linear Road: variable tolls on the expressways of a city, by how crowded each segment is and whether there was an accident.
--
-- As published, a minute is a multiple of 60 seconds, what is said in a minute rests on the minutes before it, and
-- whoever enters a segment, but for the exit lane, is told its toll, and of accidents in the next five segments.

CREATE STREAM traffic (type INT, time BIGINT, vid INT, spd INT, xway INT, lane INT, dir INT, seg INT, pos INT,
    qid INT, s_init INT, s_end INT, dow INT, tod INT, day INT)
  USING replay OPTIONS (path 'linear-road-data/traffic.csv') TIMESTAMP BY time;
CREATE TABLE history (vid INT, day INT, xway INT, toll INT)
  USING csv OPTIONS (path 'linear-road-data/history.csv');

CREATE SINK alerts USING jsonl OPTIONS (path 'linear-road-answers/accident_alerts');
CREATE SINK tolls USING jsonl OPTIONS (path 'linear-road-answers/toll_notices');
CREATE SINK balances USING jsonl OPTIONS (path 'linear-road-answers/balance_answers');
CREATE SINK spendings USING jsonl OPTIONS (path 'linear-road-answers/spending_answers');
CREATE SINK statistics USING jsonl OPTIONS (path 'linear-road-answers/segment_statistics');

-- Where the cars are: each reports every 30 seconds.
CREATE VIEW reports AS SELECT time, vid, spd, xway, lane, dir, seg, pos FROM traffic WHERE type = 0;

-- SEGMENTS.  What is over when a minute ends is there until the next one does.
CREATE VIEW car_minutes AS
  SELECT window_end AS minute, xway, dir, seg, vid, AVG(spd) AS spd
  FROM reports [TUMBLE 60] GROUP BY window_start, window_end, xway, dir, seg, vid;
CREATE VIEW segment_minutes AS
  SELECT minute, xway, dir, seg, COUNT(*) AS cars, AVG(spd) AS spd FROM car_minutes GROUP BY minute, xway, dir, seg;
CREATE VIEW average_speeds AS -- LAV, of the last five minutes
  SELECT xway, dir, seg, AVG(spd) AS lav FROM segment_minutes [RANGE 300] GROUP BY xway, dir, seg;

-- CARS.  A trip is over when no report came for more than 30 seconds.  A car stands when its last four reports are from one place.
CREATE VIEW cars AS
  SELECT time, vid, xway, lane, dir, seg, pos,
    COALESCE(LAG(time) OVER w < time - 30, TRUE) AS begins,
    COALESCE(LAG(seg) OVER w <> seg, TRUE) AS moves,
    LAG(time, 3) OVER w = time - 90 AND LAG(pos) OVER w = pos AND LAG(pos, 2) OVER w = pos AND LAG(pos, 3) OVER w = pos
      AND LAG(lane) OVER w = lane AND LAG(lane, 2) OVER w = lane AND LAG(lane, 3) OVER w = lane AS stands
  FROM reports WINDOW w AS (PARTITION BY vid ORDER BY time);

-- ACCIDENTS.  Two cars that stand in one place, each until its next report is due.
CREATE VIEW accidents AS
  SELECT xway, lane, dir, seg, pos FROM (SELECT * FROM cars WHERE stands) [RANGE 30]
  GROUP BY xway, lane, dir, seg, pos HAVING COUNT(*) > 1;
-- Each accident in each minute of its life, and in the minute after that the segments from which it can be reached.
CREATE VIEW minutes AS SELECT DISTINCT minute FROM segment_minutes;
CREATE VIEW accident_minutes AS ISTREAM (SELECT DISTINCT a.xway, a.dir, a.seg, m.minute FROM accidents a, minutes m);
CREATE VIEW warned AS
  SELECT DISTINCT xway, dir, CASE dir WHEN 0 THEN seg - ahead ELSE seg + ahead END AS seg, seg AS accident
  FROM accident_minutes [TUMBLE 60], VALUES (0), (1), (2), (3), (4) AS reach(ahead);

-- TOLLS of this minute.
CREATE VIEW tolls_now AS
  SELECT l.xway, l.dir, l.seg, s.cars, l.lav,
    CASE WHEN l.lav < 40 AND s.cars > 50 AND w.seg IS NULL THEN 2 * (s.cars - 50) * (s.cars - 50) ELSE 0 END AS toll
  FROM average_speeds l
  LEFT JOIN segment_minutes s ON s.xway = l.xway AND s.dir = l.dir AND s.seg = l.seg
  LEFT JOIN (SELECT DISTINCT xway, dir, seg FROM warned) w ON w.xway = l.xway AND w.dir = l.dir AND w.seg = l.seg;

-- CROSSINGS: the first report of a car from a segment, and the toll there.
CREATE VIEW crossings AS SELECT time, vid, xway, lane, dir, seg, begins FROM cars WHERE begins OR moves;
CREATE VIEW priced AS
  ISTREAM (SELECT c.*, t.lav, COALESCE(t.toll, 0) AS toll
           FROM crossings [NOW] c LEFT JOIN tolls_now t ON t.xway = c.xway AND t.dir = c.dir AND t.seg = c.seg);

CREATE QUERY toll_notices INTO tolls AS
  ISTREAM (SELECT vid, time, lav, toll FROM priced [NOW] WHERE lane <> 4);

CREATE QUERY accident_alerts INTO alerts AS
  ISTREAM (SELECT c.vid, c.time, w.accident AS seg
           FROM crossings [NOW] c JOIN warned w ON w.xway = c.xway AND w.dir = c.dir AND w.seg = c.seg
           WHERE c.lane <> 4);

CREATE QUERY segment_statistics INTO statistics AS
  SELECT xway, dir, seg, cars, lav, toll FROM tolls_now;

-- ACCOUNTS.  The toll of a segment is charged when the car crosses into the next one, so not when it has taken the exit.
CREATE VIEW charges AS
  SELECT vid, toll FROM (
    SELECT vid, begins, LAG(toll) OVER (PARTITION BY vid ORDER BY _time) AS toll FROM priced
  ) WHERE NOT begins AND toll > 0;
CREATE VIEW accounts AS SELECT vid, SUM(toll) AS balance FROM charges [UNBOUNDED] GROUP BY vid;

CREATE QUERY balance_answers INTO balances AS
  ISTREAM (SELECT r.qid, r.time, r.vid, COALESCE(a.balance, 0) AS balance
           FROM (SELECT * FROM traffic WHERE type = 2) [NOW] r LEFT JOIN accounts a ON a.vid = r.vid);

CREATE QUERY spending_answers INTO spendings AS
  ISTREAM (SELECT r.qid, r.time, r.vid, h.toll
           FROM (SELECT * FROM traffic WHERE type = 3) [NOW] r
           LEFT JOIN history h ON h.vid = r.vid AND h.day = r.day AND h.xway = r.xway);
