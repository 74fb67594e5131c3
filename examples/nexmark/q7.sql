-- Q7, highest bid: the highest bid of every ten seconds.
--
-- Asked as published, but for a window on the bids, which says for how long a bid can still be asked for,
-- and ISTREAM, which gives each bid once. Like the published text, it also gives a bid that comes exactly at
-- the end of the ten seconds and is as high as their highest.

CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE SINK q7 USING jsonl OPTIONS (path 'nexmark-answers/q7');

CREATE QUERY q7 INTO q7 AS
ISTREAM (
  SELECT B.auction, B.price, B.bidder, B.dateTime, B.extra
  FROM bid [RANGE 20 SECONDS] B
  JOIN (
    SELECT MAX(price) AS maxprice, window_end AS dateTime
    FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
    GROUP BY window_start, window_end
  ) B1
  ON B.price = B1.maxprice
  WHERE B.dateTime BETWEEN B1.dateTime - INTERVAL '10' SECOND AND B1.dateTime
);
