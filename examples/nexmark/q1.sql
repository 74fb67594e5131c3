-- Q1, currency conversion: every bid with its price in euros, at 0.908 to the dollar.
--
-- Differs in one type: the published factor makes a DECIMAL(23, 3) of the price, here it is a DOUBLE.

CREATE STREAM bid (auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
    dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/bid.csv') TIMESTAMP BY dateTime;
CREATE SINK q1 USING jsonl OPTIONS (path 'nexmark-answers/q1');

CREATE QUERY q1 INTO q1 AS
SELECT auction, bidder, 0.908 * price AS price, dateTime, extra FROM bid;
