package controlplane

import (
	"crypto/tls"
	"log/slog"
	"net/http"

	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/pkg/certfile"
)

// mysqlFlags are about TLS to the database, which the DSN can ask for, too, by tls=true.
type mysqlFlags struct {
	MySQL certfile.RemoteFlags `embed:"" prefix:"mysql-" envprefix:"WINDLASS_MYSQL_"`
}

// config of the store.
func (f databaseFlags) config(log *slog.Logger) mysql.Config {
	out := mysql.Config{DSN: f.MySQLDSN, ReadDSN: f.MySQLReadDSN}
	if f.MySQL != (certfile.RemoteFlags{}) {
		out.TLS = func(host string) (*tls.Config, error) { return f.MySQL.Config("mysql-", host, log) }
	}
	return out
}

// remoteFlags are about TLS to and from Restate, and of --metrics-listen.
type remoteFlags struct {
	Restate    certfile.RemoteFlags  `embed:"" prefix:"restate-" envprefix:"WINDLASS_RESTATE_"`
	RestateTLS restateFlags          `embed:"" prefix:"restate-" envprefix:"WINDLASS_RESTATE_"`
	Metrics    certfile.MetricsFlags `embed:"" prefix:"metrics-" envprefix:"WINDLASS_METRICS_"`
}

// restateFlags are about --restate-listen.
type restateFlags struct {
	Cert string `name:"tls-cert" help:"PEM file with the certificate of --restate-listen, and the CAs that it chains to, of which Restate has to know one. Read again when it changes. Default: no TLS." type:"path" env:"TLS_CERT"`
	Key  string `name:"tls-key" help:"PEM file with the key of that certificate." type:"path" env:"TLS_KEY"`
}

// remote is what remoteFlags say. A nil configuration is no TLS.
type remote struct {
	restate                func(*http.Transport)
	restateTLS, metricsTLS *tls.Config
}

func (f remoteFlags) open(log *slog.Logger) (out remote, err error) {
	if out.restate, err = remoteTransport(f.Restate, "restate-", log); err != nil {
		return out, err
	}
	listener := certfile.ServerFlags{Cert: f.RestateTLS.Cert, Key: f.RestateTLS.Key, Insecure: true}
	if out.restateTLS, err = listener.Config(certfile.Listener{Prefix: "restate-", Flag: "--restate-listen"}, log); err != nil {
		return out, err
	}
	out.metricsTLS, err = f.Metrics.Config(log)
	return out, err
}

// remoteTransport returns what makes a transport use the files.
func remoteTransport(f certfile.RemoteFlags, prefix string, log *slog.Logger) (func(*http.Transport), error) {
	if err := f.Apply(&http.Transport{}, prefix, log); err != nil {
		return nil, err
	}
	return func(t *http.Transport) {
		_ = f.Apply(t, prefix, log) // its error would be that of a moment ago
	}, nil
}
