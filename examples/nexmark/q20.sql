-- Q20, expand bid with auction: every bid on an auction of category 10, with all that is known of the auction.
--
-- Asked as published. Neither side has a window, so bids and auctions are remembered for ever.

CREATE STREAM auction (id BIGINT, itemName STRING, description STRING, initialBid BIGINT,
    reserve BIGINT, dateTime TIMESTAMP, expires TIMESTAMP, seller BIGINT, category BIGINT, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/auction.csv') TIMESTAMP BY dateTime;
CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE SINK q20 USING jsonl OPTIONS (path 'nexmark-answers/q20');

CREATE QUERY q20 INTO q20 AS
SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
       A.itemName, A.description, A.initialBid, A.reserve, A.dateTime AS auction_dateTime,
       A.expires, A.seller, A.category, A.extra AS auction_extra
FROM bid B INNER JOIN auction A ON B.auction = A.id
WHERE A.category = 10;
