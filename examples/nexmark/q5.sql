-- Q5, hot items: which auctions had the most bids in the last ten seconds? Every two seconds.
--
-- Asked as published; what it says twice, the bids of each auction in each window, is a view here, and
-- the counts of one window are compared with the highest of the same window. RSTREAM gives the answer at the end of
-- each window. With `num >= ALL (SELECT ..)` the join would not be needed.

CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE VIEW AuctionBids AS
  SELECT auction, COUNT(*) AS num, window_start AS starttime, window_end AS endtime
  FROM TABLE(HOP(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
  GROUP BY auction, window_start, window_end;
CREATE SINK q5 USING jsonl OPTIONS (path 'nexmark-answers/q5');

CREATE QUERY q5 INTO q5 AS
RSTREAM (
  SELECT B.auction, B.num
  FROM AuctionBids B
  JOIN (SELECT MAX(num) AS maxn, starttime, endtime FROM AuctionBids GROUP BY starttime, endtime) M
    ON B.starttime = M.starttime AND B.endtime = M.endtime AND B.num >= M.maxn
);
