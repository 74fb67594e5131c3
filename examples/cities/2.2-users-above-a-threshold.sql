-- Example 2.2: "Compute continuously the number of users who are connected to a server, and give
-- notice when this number exceeds a set threshold."

CREATE SINK screen USING console;

CREATE STREAM logins (user INT, change INT, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/logins.csv', rate '500')
  TIMESTAMP BY t;

CREATE VIEW connected AS SELECT SUM(change) AS users FROM logins;

CREATE QUERY users INTO screen AS SELECT users FROM connected;

CREATE QUERY too_many_users INTO screen AS ISTREAM (SELECT users FROM connected WHERE users > 24);

-- The same question to the sensors: how many reported in the last ten minutes, and is that a crowd?

CREATE STREAM temperature (sensor INT, city STRING, celsius DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'examples/cities/data/temperature.csv', rate '500')
  TIMESTAMP BY t;

CREATE VIEW reporting AS
  SELECT COUNT(DISTINCT sensor) AS sensors FROM temperature [RANGE 10 MINUTES];

CREATE QUERY many_sensors INTO screen AS ISTREAM (SELECT sensors FROM reporting WHERE sensors > 15);
