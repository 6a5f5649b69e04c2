package controlplane

import (
	"crypto/tls"
	"net/http"

	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/pkg/certfile"
)

// mysqlFlags configure TLS to the database, which the DSN can also request with tls=true.
type mysqlFlags struct {
	MySQL certfile.RemoteFlags `embed:"" prefix:"mysql-" envprefix:"WINDLASS_MYSQL_"`
}

// storeConfig returns the config of the store.
func (f databaseFlags) storeConfig(files *certfile.Files) mysql.Config {
	out := mysql.Config{DSN: f.MySQLDSN, ReadDSN: f.MySQLReadDSN}
	if f.MySQL != (certfile.RemoteFlags{}) {
		out.TLS = func(host string) (*tls.Config, error) { return f.MySQL.Config("mysql-", host, files) }
	}
	return out
}

// remoteFlags configure TLS to and from Restate, and TLS of --metrics-listen.
type remoteFlags struct {
	Restate    certfile.RemoteFlags  `embed:"" prefix:"restate-" envprefix:"WINDLASS_RESTATE_"`
	RestateTLS certfile.PairFlags    `embed:"" prefix:"restate-tls-" envprefix:"WINDLASS_RESTATE_" set:"listener=--restate-listen"`
	Metrics    certfile.MetricsFlags `embed:"" prefix:"metrics-" envprefix:"WINDLASS_METRICS_"`
}

// remote is the result of remoteFlags. A nil configuration means no TLS.
type remote struct {
	restate                func(*http.Transport)
	restateTLS, metricsTLS *tls.Config
}

func (f remoteFlags) open(files *certfile.Files) (out remote, err error) {
	if out.restate, err = f.Restate.Transport("restate-", files); err != nil {
		return out, err
	}
	listener := certfile.ServerFlags{PairFlags: f.RestateTLS, Insecure: true}
	if out.restateTLS, err = listener.Config(certfile.Listener{Prefix: "restate-", Flag: "--restate-listen"}, files); err != nil {
		return out, err
	}
	out.metricsTLS, err = f.Metrics.Config(files)
	return out, err
}
