package table

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

func newTable() *Table {
	return New(upstream.Config{Now: time.Now, Random: rand.Uint64, Ejected: func(upstream.Ejection) {}, Drained: func(string) {}})
}

func spec(app string, generation int64, hosts ...string) upstream.Spec {
	s := upstream.Spec{AppID: app, AppName: app, Generation: generation, Hosts: hosts, Policy: upstream.DefaultPolicy()}
	target := upstream.TargetSpec{DeploymentID: "dep_" + app, Version: 1, Weight: 100}
	for i := range 4 {
		target.Instances = append(target.Instances, upstream.InstanceSpec{ID: fmt.Sprintf("%s-%d", app, i), Address: "127.0.0.1:1", State: upstream.Ready})
	}
	s.Targets = []upstream.TargetSpec{target}
	return s
}

func TestHost_IsComparedAsDNSDoes(t *testing.T) {
	for from, want := range map[string]string{
		"echo.example.com":      "echo.example.com",
		"Echo.Example.COM":      "echo.example.com",
		"echo.example.com.":     "echo.example.com",
		"echo.example.com:8080": "echo.example.com",
		"ECHO.example.com.:443": "echo.example.com",
		"[::1]:80":              "::1",
		"[::1]":                 "::1",
		"":                      "",
		":80":                   "",
		"::1":                   "::1",
		"echo.example.com:":     "echo.example.com",
		"echo.example.com:x":    "",
		"echo.example.com:8@b":  "",
		"echo.example.com:8:9":  "",
		"[echo.example.com]":    "",
		"[::1":                  "",
		"[::1]x":                "",
		"[::1]:x":               "",
		"[127.0.0.1]":           "",
	} {
		require.Equal(t, want, Host(from), from)
	}
}

func TestHost_LeadsToItsApp(t *testing.T) {
	table := newTable()
	require.NoError(t, table.Put(spec("a", 1, "a.local", "www.a.local")))
	require.NoError(t, table.Put(spec("b", 1, "b.local")))
	app := func(host string) string {
		r := table.Lookup(host)
		if r == nil {
			return ""
		}
		s, _ := r.Spec()
		return s.AppID
	}
	require.Equal(t, []string{"a", "a", "b", ""}, []string{app("a.local"), app("www.a.local"), app("b.local"), app("c.local")})

	// A host moves from one app to the other. The app that was put last has the host, also after the
	// other app has left it.
	require.NoError(t, table.Put(spec("b", 2, "b.local", "www.a.local")))
	require.Equal(t, "b", app("www.a.local"))
	require.NoError(t, table.Put(spec("a", 2, "a.local")))
	require.Equal(t, "b", app("www.a.local"))
	require.True(t, table.Remove("b"))
	require.False(t, table.Remove("b"))
	require.Empty(t, app("www.a.local"))
	require.Empty(t, app("b.local"))
	require.Equal(t, "a", app("a.local"))
	require.Equal(t, 1, table.Len())
}

func TestTable_KeepsItsRoutesIfNewOnesAreBad(t *testing.T) {
	table := newTable()
	require.NoError(t, table.Put(spec("a", 1, "a.local")))
	bad := spec("a", 2, "a.local", "new.a.local")
	bad.Policy.Strategy = "fastest"
	bad.Targets[0].DeploymentID = "dep_other"
	require.ErrorContains(t, table.Put(bad), "fastest")
	require.Nil(t, table.Lookup("new.a.local"))
	held, ok := table.Lookup("a.local").Spec()
	require.True(t, ok)
	require.Equal(t, int64(1), held.Generation)
}

// A reader that looks up an app while it changes between two specs always finds one of the two.
func TestTable_ChangeIsSeenWhole(t *testing.T) {
	table := newTable()
	require.NoError(t, table.Put(spec("a", 0, "a.local", "even.local")))
	var done atomic.Bool
	wrong := make(chan string, 1)
	go func() {
		defer close(wrong)
		for !done.Load() {
			r := table.Lookup("a.local")
			if r == nil {
				wrong <- "the host that both specs have was not found"
				return
			}
			s, _ := r.Spec()
			if want := map[bool]string{true: "even.local", false: "odd.local"}[s.Generation%2 == 0]; s.Hosts[1] != want {
				wrong <- fmt.Sprintf("generation %d with %v", s.Generation, s.Hosts)
				return
			}
		}
	}()
	for i := int64(1); i <= 2000; i++ {
		require.NoError(t, table.Put(spec("a", i, "a.local", map[bool]string{true: "even.local", false: "odd.local"}[i%2 == 0])))
	}
	done.Store(true)
	require.Empty(t, <-wrong)
}

// A change of one route among 5,000 routes with 20,000 instances costs as much as a change of a single route.
func BenchmarkPutAmong5000(b *testing.B) {
	table := newTable()
	for i := range 5000 {
		require.NoError(b, table.Put(spec(fmt.Sprintf("app-%d", i), 1, fmt.Sprintf("app-%d.local", i))))
	}
	b.ReportAllocs()
	for n := int64(2); b.Loop(); n++ {
		require.NoError(b, table.Put(spec("app-2500", n, "app-2500.local")))
	}
}

func BenchmarkLookup(b *testing.B) {
	table := newTable()
	for i := range 5000 {
		require.NoError(b, table.Put(spec(fmt.Sprintf("app-%d", i), 1, fmt.Sprintf("app-%d.local", i))))
	}
	b.ReportAllocs()
	for b.Loop() {
		if table.Lookup(Host("app-2500.local:8080")) == nil {
			b.Fatal("lost")
		}
	}
}
