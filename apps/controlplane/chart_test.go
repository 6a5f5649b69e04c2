package controlplane

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/authority"
	"github.com/windlass-run/windlass/pkg/charttest"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
)

// TestChart_ServesAndBacksUp runs the program as the chart's pods do: with its variables and arguments, and with files
// where Secrets are mounted. Only addresses and folders differ.
func TestChart_ServesAndBacksUp(t *testing.T) {
	root := filepath.Join("..", "..")
	c := charttest.Containers(t, root, "Deployment", "controlplane")["controlplane.yaml"]
	dir := t.TempDir()
	for _, name := range []string{"tls", "keyset", "backups"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	ca, err := authority.New("test", time.Now())
	require.NoError(t, err)
	cert, key, err := ca.Issue(authority.Request{Name: "api", Hosts: []string{"127.0.0.1"}, Server: true, Life: time.Hour}, time.Now())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tls", "tls.crt"), cert, 0o400))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tls", "tls.key"), key, 0o400))
	require.NoError(t, Main(t.Context(), []string{"keyset", "create", "--key-file=" + filepath.Join(dir, "keyset", "keyset.json")}))

	dsn := stacktest.MariaDB(t)
	ingress, admin := stacktest.Restate(t)
	ports := map[string]string{}
	for _, port := range []string{":7700", ":7701", ":7702", ":9090"} {
		ports[port] = freeAddress(t)
	}
	// The order matters, because the first two URLs contain the shorter addresses below.
	here := strings.NewReplacer("http://restate:8080", ingress, "http://restate:9070", admin,
		"windlass-controlplane-workflows.windlass:7701", ports[":7701"], "$(POD_IP):7702", ports[":7702"],
		":7700", ports[":7700"], ":7701", ports[":7701"], ":7702", ports[":7702"], ":9090", ports[":9090"],
		"/tls/", dir+"/tls/", "/keyset/", dir+"/keyset/")
	for name, value := range c.Env {
		c.Env[name] = here.Replace(value)
	}
	c.Env["WINDLASS_MYSQL_DSN"] = dsn
	c.SetEnv(t)

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Main(ctx, c.Args) }()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS12},
	}}
	answers := func(url string) bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		require.NoError(t, err)
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode == http.StatusOK
	}
	require.Contains(t, c.Text, "path: /readyz\n              port: metrics")
	require.Contains(t, c.Text, "path: /healthz\n              port: metrics")
	require.Eventually(t, func() bool { return answers("http://" + ports[":9090"] + "/readyz") }, patience, 50*time.Millisecond)
	require.True(t, answers("http://"+ports[":9090"]+"/healthz"))
	require.True(t, answers("https://"+ports[":7700"]+"/ui/"))

	backup := charttest.Containers(t, root, "CronJob", "controlplane")["windlass-controlplane.full.golden.yaml"]
	for i, arg := range backup.Args {
		backup.Args[i] = strings.Replace(arg, "/backups/$(BACKUP)", filepath.Join(dir, "backups", "windlass-controlplane-backup-29738537"), 1)
	}
	require.NoError(t, Main(t.Context(), backup.Args))
	require.FileExists(t, filepath.Join(dir, "backups", "windlass-controlplane-backup-29738537.backup"))

	stop()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "the control plane does not end")
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	return l.Addr().String()
}
