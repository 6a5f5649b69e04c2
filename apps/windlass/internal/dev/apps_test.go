package dev

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// appServer is a control plane with apps.
type appServer struct {
	windlassv1connect.UnimplementedAppServiceHandler
	names []string
}

func (s appServer) ListApps(context.Context, *windlassv1.ListAppsRequest) (*windlassv1.ListAppsResponse, error) {
	r := &windlassv1.ListAppsResponse{}
	for _, name := range s.names {
		r.Apps = append(r.Apps, &windlassv1.App{Name: name})
	}
	return r, nil
}

func TestReady_NamesAppsOfEarlierRuns(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle(windlassv1connect.NewAppServiceHandler(appServer{names: []string{"chat", "echo"}}))
	server := httptest.NewServer(mux)
	defer server.Close()
	_, text, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	port, err := strconv.Atoi(text)
	require.NoError(t, err)

	r := &run{
		cfg: Config{Getenv: func(string) string { return "" }}, self: "/usr/bin/windlass", state: &stateFile{},
		layout: layout{root: t.TempDir()}, ports: map[string]int{portAPI: port, portRestateAdmin: 7705},
	}
	require.NoError(t, credentials{APIKey: "wl_x"}.saveFile(r.layout.credentialsPath()))
	require.Empty(t, r.earlierApps(t.Context()), "the first run")

	r.hasEarlier = true
	ready := r.nextSteps("", r.earlierApps(t.Context()))
	require.Contains(t, ready, "  Apps        chat, echo, of an earlier run; after a stop, `"+r.layout.shellCommand("/usr/bin/windlass", "--reset")+"` begins anew\n")
	require.Contains(t, ready, "`/usr/bin/windlass dev --detach` runs it in the background")
	require.Contains(t, ready, "`/usr/bin/windlass dev --data-dir FOLDER`")
	require.NotContains(t, r.nextSteps("", nil), "  Apps  ")

	server.Close()
	require.Empty(t, r.earlierApps(t.Context()), "an unknown list is no error")
}

func TestAppsText_CountsWhatItDoesNotName(t *testing.T) {
	var names []string
	for i := range listedApps {
		names = append(names, fmt.Sprint("a", i))
	}
	require.Equal(t, "a0, a1, a2", appsText(names[:3]))
	require.Equal(t, "a0, a1, a2 and 1 more", appsText(names[:4]))
	require.Equal(t, "a0, a1, a2 and at least 97 more", appsText(names))
}

func TestRestate_HasTheSameAddressEverywhere(t *testing.T) {
	for _, tls := range []bool{false, true} {
		r := &run{
			cfg: Config{Getenv: func(string) string { return "" }}, self: "/usr/bin/windlass", state: &stateFile{}, tls: tls, certs: &certificates{},
			layout: layout{root: t.TempDir()}, ports: map[string]int{portRestateAdmin: 7705, portRestateIngress: 7704},
		}
		c := r.restateChild()
		want := "http://127.0.0.1:7705 (admin)"
		if tls {
			c, want = r.restateFrontChild(), "https://127.0.0.1:7705 (admin)"
		}
		require.Equal(t, want, c.detail)
		require.Contains(t, r.nextSteps("", nil), "  Workflows   Restate at "+want+"\n")

		var out bytes.Buffer
		s := Status{Running: true, layout: r.layout, DataDir: filepath.Join(r.layout.root, "x"), State: State{TLS: tls, Ports: r.ports, Processes: []ProcessState{
			{Name: c.name, URLs: c.urls}, {Name: "agent/eu", URLs: []string{"http://127.0.0.1:7711"}},
		}}}
		require.NoError(t, printStatus(&out, s))
		require.Contains(t, out.String(), want)
		require.NotContains(t, out.String(), "7704")
		require.Contains(t, out.String(), "http://127.0.0.1:7711 ")
	}
}
