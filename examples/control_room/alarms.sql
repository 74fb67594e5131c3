CREATE SINK screen USING console;
CREATE STREAM telemetry (turbine INT, plant INT, power DOUBLE, rpm DOUBLE, bearing DOUBLE, t TIMESTAMP)
  USING replay OPTIONS (path 'demo-output/data/telemetry.csv') TIMESTAMP BY t SLACK 3 SECONDS;
CREATE STREAM status (turbine INT, code STRING, severity INT, text STRING, t TIMESTAMP)
  USING replay OPTIONS (path 'demo-output/data/status.csv') TIMESTAMP BY t;

CREATE QUERY alarms INTO screen AS ISTREAM (  -- every alarm, and how hot its bearing had been before
  SELECT s.turbine, s.code, heat.hottest
  FROM status [NOW] s JOIN
    (SELECT turbine, MAX(bearing) AS hottest FROM telemetry [RANGE 10 MINUTES] GROUP BY turbine) heat
    ON s.turbine = heat.turbine
  WHERE s.severity = 3);
