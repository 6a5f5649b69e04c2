package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// doctorServer is a control plane that doctor checks.
type doctorServer struct {
	windlassv1connect.UnimplementedAccessServiceHandler
	windlassv1connect.UnimplementedRegionServiceHandler
	who     *windlassv1.WhoAmIResponse
	refusal error
	regions []*windlassv1.Region
	// clock is how far its clock is ahead.
	clock time.Duration
}

func (p *doctorServer) WhoAmI(context.Context, *windlassv1.WhoAmIRequest) (*windlassv1.WhoAmIResponse, error) {
	return p.who, p.refusal
}

func (p *doctorServer) ListRegions(context.Context, *windlassv1.ListRegionsRequest) (*windlassv1.ListRegionsResponse, error) {
	return &windlassv1.ListRegionsResponse{Regions: p.regions}, nil
}

// serve starts the server. Its certificate expires after validity; 0 means no TLS.
func (p *doctorServer) serve(t *testing.T, validity time.Duration) (url, ca string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(windlassv1connect.NewAccessServiceHandler(p))
	mux.Handle(windlassv1connect.NewRegionServiceHandler(p))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(p.clock).UTC().Format(http.TimeFormat))
	})
	s := httptest.NewUnstartedServer(mux)
	t.Cleanup(s.Close)
	if validity == 0 {
		s.Config.Protocols = new(http.Protocols)
		s.Config.Protocols.SetHTTP1(true)
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		s.Start()
		return s.URL, ""
	}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	cert, ca := selfSigned(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(validity) })
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	s.EnableHTTP2 = true
	s.StartTLS()
	return s.URL, ca
}

// windlass runs a command of version v0.3.1 with environment variables.
func windlass(t *testing.T, env map[string]string, args ...string) (stdout string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	if env["HOME"] == "" {
		env["HOME"] = t.TempDir()
	}
	if env[`WINDLASS_CONFIG`] == "" {
		env["WINDLASS_CONFIG"] = filepath.Join(env["HOME"], "config.yaml")
	}
	root := New(Config{Version: "v0.3.1", Stdout: &out, Stderr: &errs, Getenv: func(name string) string { return env[name] }})
	root.SetArgs(args)
	if err := root.ExecuteContext(t.Context()); err != nil {
		code = Report(&errs, err)
	}
	return out.String(), code
}

// newDoctorServer returns a control plane in which doctor finds no fault.
func newDoctorServer() *doctorServer {
	return &doctorServer{
		who: &windlassv1.WhoAmIResponse{
			Key: &windlassv1.ApiKey{Name: "ci", Role: windlassv1.Role_ROLE_DEPLOYER}, WorkspaceName: "search", ServerVersion: "v0.3.0",
		},
		regions: []*windlassv1.Region{{Name: "us", Status: windlassv1.RegionStatus_REGION_STATUS_CONNECTED, AgentVersion: "v0.2.5"}},
	}
}

// runDoctor runs doctor, and returns its checks by name.
func (p *doctorServer) runDoctor(t *testing.T, validity time.Duration, more map[string]string) (map[string]check, int) {
	t.Helper()
	url, ca := p.serve(t, validity)
	env := map[string]string{"WINDLASS_SERVER": url, "WINDLASS_API_KEY": "wl_x", "WINDLASS_SERVER_CA": ca}
	maps.Copy(env, more)
	out, code := windlass(t, env, "doctor", "-o", "json")
	var answer struct{ Checks []check }
	require.NoError(t, json.Unmarshal([]byte(out), &answer), out)
	checks := map[string]check{}
	for _, c := range answer.Checks {
		require.Equal(t, c.Result == checkWarn || c.Result == checkFail, c.Fix != "", "a finding says what to do: %+v", c)
		checks[c.Name] = c
	}
	return checks, code
}

func TestDoctor(t *testing.T) {
	const year = 365 * 24 * time.Hour

	t.Run("all is well", func(t *testing.T) {
		checks, code := newDoctorServer().runDoctor(t, year, nil)
		require.Zero(t, code)
		for _, name := range []string{"context", "name", "certificate", "key", "clock", "versions", "region us"} {
			require.Equal(t, checkOK, checks[name].Result, "%+v", checks[name])
		}
		require.Equal(t, "ci, deployer of workspace search", checks["key"].Detail)
		require.Equal(t, "windlass v0.3.1, control plane v0.3.0", checks["versions"].Detail)
		require.Contains(t, checks["certificate"].Detail, "valid until 20")
	})

	t.Run("people get a table with fixes", func(t *testing.T) {
		p := newDoctorServer()
		p.regions[0].Status = windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE
		url, _ := p.serve(t, 0)
		out, code := windlass(t, map[string]string{"WINDLASS_SERVER": url, "WINDLASS_API_KEY": "wl_x"}, "doctor")
		require.Equal(t, 1, code)
		require.Regexp(t, `(?m)^CHECK +RESULT +DETAIL$`, out)
		require.Regexp(t, `(?m)^region us +fail +unreachable`, out)
		require.Contains(t, out, "fix: Look at the agent's log there.")
		require.NotContains(t, out, "wl_x")
	})

	t.Run("a certificate near its end is a warning", func(t *testing.T) {
		checks, code := newDoctorServer().runDoctor(t, 48*time.Hour, nil)
		require.Zero(t, code)
		require.Equal(t, checkWarn, checks["certificate"].Result)
		require.Contains(t, checks["certificate"].Fix, "Renew the control plane's --tls-cert")
	})

	t.Run("an unknown CA fails, and checks that need the connection are skipped", func(t *testing.T) {
		checks, code := newDoctorServer().runDoctor(t, year, map[string]string{"WINDLASS_SERVER_CA": ""})
		require.Equal(t, 1, code)
		require.Equal(t, checkFail, checks["certificate"].Result)
		require.Contains(t, checks["certificate"].Fix, "--server-ca")
		for _, name := range []string{"key", "clock", "versions", "regions"} {
			require.Equal(t, checkSkip, checks[name].Result)
		}
	})

	t.Run("a name that does not resolve fails", func(t *testing.T) {
		checks, code := newDoctorServer().runDoctor(t, 0, map[string]string{"WINDLASS_SERVER": "https://windlass.invalid"})
		require.Equal(t, 1, code)
		require.Equal(t, checkFail, checks["name"].Result)
		require.Equal(t, checkSkip, checks["certificate"].Result)
	})

	t.Run("without a context, the fix says how to create one", func(t *testing.T) {
		checks, code := newDoctorServer().runDoctor(t, 0, map[string]string{"WINDLASS_SERVER": "", "WINDLASS_API_KEY": ""})
		require.Equal(t, 1, code)
		require.Contains(t, checks["context"].Fix, "windlass login")
	})

	t.Run("a file of keys that others can read is a warning", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "config.yaml")
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		require.NoError(t, os.Chmod(path, 0o644))
		checks, _ := newDoctorServer().runDoctor(t, 0, map[string]string{"WINDLASS_CONFIG": path})
		require.Equal(t, checkWarn, checks["context"].Result)
		require.Equal(t, "chmod 600 "+path, checks["context"].Fix)
	})

	t.Run("a key that is refused has the refusal's fix", func(t *testing.T) {
		p := newDoctorServer()
		p.refusal = rpc.ErrorWith(connect.CodeUnauthenticated, &windlassv1.ErrorDetail{Fix: "Ask an owner for another key."}, "the key was revoked")
		checks, code := p.runDoctor(t, 0, nil)
		require.Equal(t, 1, code)
		require.Equal(t, check{"key", checkFail, "the key was revoked", "Ask an owner for another key."}, checks["key"])
	})

	t.Run("a key that expires soon is a warning", func(t *testing.T) {
		p := newDoctorServer()
		p.who.Key.ExpiresAt = time.Now().Add(49 * time.Hour).UnixMilli()
		checks, code := p.runDoctor(t, 0, nil)
		require.Zero(t, code)
		require.Equal(t, checkWarn, checks["key"].Result)
	})

	t.Run("clocks that differ by minutes fail", func(t *testing.T) {
		p := newDoctorServer()
		p.clock = 10 * time.Minute
		checks, code := p.runDoctor(t, 0, nil)
		require.Equal(t, 1, code)
		require.Equal(t, checkFail, checks["clock"].Result)
		require.Contains(t, checks["clock"].Detail, "this machine is behind the control plane by ")
		require.Contains(t, checks["clock"].Fix, "NTP")
	})

	t.Run("regions without agents, with old and with newer ones are warnings", func(t *testing.T) {
		p := newDoctorServer()
		connected := windlassv1.RegionStatus_REGION_STATUS_CONNECTED
		p.who.ServerVersion = "v0.4.0"
		p.regions = []*windlassv1.Region{
			{Name: "empty", Status: windlassv1.RegionStatus_REGION_STATUS_PENDING},
			{Name: "old", Status: connected, AgentVersion: "v0.1.9"},
			{Name: "newer", Status: connected, AgentVersion: "v0.5.0"},
			{Name: "built", Status: connected, AgentVersion: "4688ead"},
			{Name: "odd", Status: connected, AgentVersion: "v0.4.0", Quarantined: 2},
		}
		checks, code := p.runDoctor(t, 0, nil)
		require.Zero(t, code)
		for name, want := range map[string]string{"empty": checkWarn, "old": checkWarn, "newer": checkWarn, "built": checkOK, "odd": checkWarn} {
			require.Equal(t, want, checks["region "+name].Result, name)
		}
		require.Contains(t, checks["region empty"].Fix, "windlass region token empty")
	})

	t.Run("no regions are a warning", func(t *testing.T) {
		p := newDoctorServer()
		p.regions = nil
		checks, code := p.runDoctor(t, 0, nil)
		require.Zero(t, code)
		require.Equal(t, checkWarn, checks["regions"].Result)
	})
}

func TestSkew(t *testing.T) {
	for _, c := range []struct{ command, server, want string }{
		{"v0.3.1", "v0.3.9", checkOK},
		{"v0.3.1", "v0.4.0", checkOK},
		{"v0.3.1", "v0.2.0-12-gabcdef0", checkOK},
		{"v0.3.1", "v0.5.0", checkFail},
		{"v0.3.1", "v0.1.9", checkFail},
		{"v1.0.0", "v0.9.0", checkFail},
		{"dev", "v0.3.0", checkOK},
		{"v0.3.1", "4688ead", checkOK},
		{"4688ead", "4688ead", checkOK},
	} {
		require.Equal(t, c.want, checkVersions(c.command, c.server).Result, "%s and %s", c.command, c.server)
	}

	t.Run("the same commit is the same version", func(t *testing.T) {
		require.Equal(t, "windlass 4688ead, control plane 4688ead", checkVersions("4688ead", "4688ead").Detail)
		require.Contains(t, checkVersions("4688ead", "5f1b2c3").Detail, "cannot be compared")
		require.Contains(t, checkVersions("dev", "dev").Detail, "cannot be compared", "programs without a version may differ")
		region := &windlassv1.Region{Name: "eu", Status: windlassv1.RegionStatus_REGION_STATUS_CONNECTED, AgentVersion: "4688ead"}
		require.Equal(t, "connected, agent 4688ead", regionCheck(region, "4688ead").Detail)
	})

	t.Run("version --check ends with 1 if versions do not fit", func(t *testing.T) {
		p := newDoctorServer()
		url, _ := p.serve(t, 0)
		env := map[string]string{"WINDLASS_SERVER": url, "WINDLASS_API_KEY": "wl_x"}
		_, code := windlass(t, env, "version", "--check")
		require.Zero(t, code)
		p.who.ServerVersion = "v0.7.0"
		out, code := windlass(t, env, "version", "--check", "-o", "json")
		require.Equal(t, 1, code)
		require.Contains(t, out, `"controlPlane": "v0.7.0"`)
		_, code = windlass(t, env, "version")
		require.Zero(t, code)
		p.refusal = errors.New("away")
		_, code = windlass(t, env, "version", "--check")
		require.Equal(t, 1, code)
	})
}

func TestClock(t *testing.T) {
	sent := time.Date(2026, 11, 27, 12, 0, 0, 700e6, time.UTC)
	came := sent.Add(time.Second)
	for date, want := range map[time.Duration]string{
		0: checkOK, time.Second: checkOK, -4 * time.Second: checkOK, -8 * time.Second: checkWarn, 30 * time.Second: checkWarn,
		-10 * time.Minute: checkFail,
	} {
		c := clockCheck(sent.Truncate(time.Second).Add(date), sent, came)
		require.Equal(t, want, c.Result, "%s: %s", date, c.Detail)
		require.Equal(t, want == checkOK, strings.HasPrefix(c.Detail, "equals "), c.Detail)
	}
}
