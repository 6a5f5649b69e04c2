package controlplane

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
)

// results returns the results of the findings by check, the worst of each.
func results(findings []finding) map[string]string {
	rank := map[string]int{resultOK: 1, resultWarn: 2, resultFail: 3}
	got := map[string]string{}
	for _, x := range findings {
		if rank[x.Result] > rank[got[x.Check]] {
			got[x.Check] = x.Result
		}
	}
	return got
}

func TestJudgeDatabase_NeedsOneAddressThatAcceptsWrites(t *testing.T) {
	t.Parallel()
	good := mysql.Examination{Address: "a:1", Server: "10.11", Schema: 7, Known: 7}
	readOnly, gone := good, mysql.Examination{Address: "b:1", Error: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}
	readOnly.Address, readOnly.ReadOnly = "c:1", true

	require.Equal(t, map[string]string{"database a:1": "ok", "schema": "ok", "rights": "ok", "clock": "ok"}, results(judgeDatabase([]mysql.Examination{good})))
	require.Equal(t, map[string]string{"database b:1": "warn", "database a:1": "ok", "database c:1": "warn", "schema": "ok", "rights": "ok", "clock": "ok"},
		results(judgeDatabase([]mysql.Examination{gone, readOnly, good})))
	require.Equal(t, map[string]string{"database b:1": "fail", "database": "fail"}, results(judgeDatabase([]mysql.Examination{gone})))
	require.Equal(t, map[string]string{"database c:1": "warn", "database": "fail"}, results(judgeDatabase([]mysql.Examination{readOnly})))

	bad := good
	bad.Schema, bad.Missing, bad.Skew = 8, []string{"ALTER", "INDEX"}, -2*time.Minute
	findings := judgeDatabase([]mysql.Examination{bad})
	require.Equal(t, map[string]string{"database a:1": "ok", "schema": "warn", "rights": "warn", "clock": "fail"}, results(findings))
	require.Contains(t, findings[2].Detail, "ALTER, INDEX")
	require.Equal(t, "this machine is ahead of the database by 2m0s", findings[3].Detail)
}

func TestCheckURLs_OneOfSeveralIsEnough(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/restate/health" {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(up.Close)
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	check := func(urls ...string) []finding {
		return checkURLs(t.Context(), http.DefaultClient, "restate ingress", "/restate/health", urls)
	}
	require.Equal(t, []finding{{"restate ingress", resultOK, up.URL + "/", ""}}, check(up.URL+"/"))
	require.Equal(t, resultWarn, results(check(down.URL, up.URL))["restate ingress"])
	require.Equal(t, resultFail, results(check(down.URL))["restate ingress"])
	require.Contains(t, check("restate")[0].Detail, "is not a URL")
}

func TestDoctor_ExaminesARunningDatabase(t *testing.T) {
	dsn := stacktest.MariaDB(t)
	restate := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(restate.Close)
	f := doctorFlags{
		databaseFlags: databaseFlags{MySQLDSN: dsn}, RestateIngress: []string{restate.URL}, RestateAdmin: []string{restate.URL},
		KeyFile: filepath.Join(t.TempDir(), "keyset.json"), Output: "json",
	}
	run := func() map[string]string {
		var out bytes.Buffer
		require.ErrorIs(t, f.run(t.Context(), &out, slog.New(slog.DiscardHandler)), errCheckFailed)
		var answer struct{ Checks []finding }
		require.NoError(t, json.Unmarshal(out.Bytes(), &answer))
		return results(answer.Checks)
	}
	got := run()
	require.Equal(t, []string{"fail", "ok", "ok", "ok", "fail", "fail"},
		[]string{got["keyset"], got["schema"], got["rights"], got["clock"], got["restate ingress"], got["restate admin"]})

	db, err := mysql.Open(t.Context(), mysql.Config{DSN: dsn})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	require.Equal(t, "ok", run()["schema"])
	f.MySQLDSN, f.Output = "u:p@tcp(127.0.0.1:1)/windlass", "table"
	var out bytes.Buffer
	require.Error(t, f.run(t.Context(), &out, slog.New(slog.DiscardHandler)))
	require.Regexp(t, `database 127.0.0.1:1 +fail`, out.String())
	require.Contains(t, out.String(), "fix: Start the server")
	require.NotContains(t, out.String(), "u:p@")
}
