-- Example 2.4: "Every hour, make a list of all shares that were traded in that time."

CREATE SINK screen USING console;

CREATE STREAM trades (share STRING, price DOUBLE, volume INT, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/trades.csv', rate '500')
  TIMESTAMP BY t;

CREATE QUERY shares_of_the_hour INTO screen AS
  RSTREAM (SELECT DISTINCT share FROM trades [RANGE 1 HOUR SLIDE 1 HOUR]);

-- The same question to the sensors: where was it below four degrees in the last hour?

CREATE STREAM temperature (sensor INT, city STRING, celsius DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/temperature.csv', rate '500')
  TIMESTAMP BY t;

CREATE QUERY cold_of_the_hour INTO screen AS
  RSTREAM (SELECT DISTINCT city FROM temperature [RANGE 1 HOUR SLIDE 1 HOUR] WHERE celsius < 4);
