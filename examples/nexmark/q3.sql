-- Q3, local item suggestion: who sells things of category 10 in Oregon, Idaho and California?
--
-- Asked as published. Neither side has a window, so people and auctions are remembered for ever.

CREATE STREAM auction (id BIGINT, itemName STRING, description STRING, initialBid BIGINT,
    reserve BIGINT, dateTime TIMESTAMP, expires TIMESTAMP, seller BIGINT, category BIGINT, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/auction.csv') TIMESTAMP BY dateTime;
CREATE STREAM person (id BIGINT, name STRING, emailAddress STRING, creditCard STRING,
    city STRING, state STRING, dateTime TIMESTAMP, extra STRING)
  USING replay OPTIONS (path 'nexmark-data/person.csv') TIMESTAMP BY dateTime;
CREATE SINK q3 USING jsonl OPTIONS (path 'nexmark-answers/q3');

CREATE QUERY q3 INTO q3 AS
SELECT P.name, P.city, P.state, A.id
FROM auction A INNER JOIN person P ON A.seller = P.id
WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA');
