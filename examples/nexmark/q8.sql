-- Q8, monitor new users: who opened an account and an auction within the same ten seconds?
--
-- Asked as published. ISTREAM gives the people of each window once, at its end.

CREATE STREAM person (id BIGINT, name STRING, emailAddress STRING, creditCard STRING,
    city STRING, state STRING, dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/person.csv') TIMESTAMP BY dateTime;
CREATE STREAM auction (id BIGINT, itemName STRING, description STRING, initialBid BIGINT,
    reserve BIGINT, dateTime TIMESTAMP, expires TIMESTAMP, seller BIGINT, category BIGINT, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/auction.csv') TIMESTAMP BY dateTime;
CREATE SINK q8 USING jsonl OPTIONS (path 'nexmark-answers/q8');

CREATE QUERY q8 INTO q8 AS
ISTREAM (
  SELECT P.id, P.name, P.starttime
  FROM (
    SELECT id, name, window_start AS starttime, window_end AS endtime
    FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
    GROUP BY id, name, window_start, window_end
  ) P
  JOIN (
    SELECT seller, window_start AS starttime, window_end AS endtime
    FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
    GROUP BY seller, window_start, window_end
  ) A
  ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime
);
