-- Q5, hot items: which auctions had the most bids in the last ten seconds? Every two seconds.
--
-- The text is the published one; what it says twice, the bids of each auction in each window, is a view here, and
-- the counts of one window are compared with the highest of the same window. ISTREAM gives each window once.
-- With `num >= ALL (SELECT ..)` neither the view nor the join would be needed.

CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE VIEW AuctionBids AS
  SELECT auction, COUNT(*) AS num, window_start AS starttime, window_end AS endtime
  FROM TABLE(HOP(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
  GROUP BY auction, window_start, window_end;
CREATE SINK q5 USING jsonl OPTIONS (path 'nexmark-answers/q5');

CREATE QUERY q5 INTO q5 AS
ISTREAM (
  SELECT B.auction, B.num
  FROM AuctionBids B
  JOIN (SELECT MAX(num) AS maxn, starttime, endtime FROM AuctionBids GROUP BY starttime, endtime) M
    ON B.starttime = M.starttime AND B.endtime = M.endtime AND B.num >= M.maxn
);
