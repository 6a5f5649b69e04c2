package modelserver

import (
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// freePort returns a port on which nothing listens now.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// rankOf returns the configuration of one rank.
func rankOf(port, rank, hosts int, change ...func(*Config)) Config {
	cfg := Config{Rank: rank, Hosts: hosts, Leader: "127.0.0.1", RendezvousPort: port, UnitEpoch: "1", VersionLabel: "v1"}
	if rank == 0 {
		cfg.Leader = ""
	}
	for _, c := range change {
		c(&cfg)
	}
	return cfg
}

func (e *endpoint) health() int {
	e.t.Helper()
	return e.do(http.MethodGet, "/health", "").status
}

func TestRanks_AreReadyOnceAllHaveMet(t *testing.T) {
	port := freePort(t)
	second := start(t, rankOf(port, 2, 3))
	leader := start(t, rankOf(port, 0, 3))
	for end := time.Now().Add(3 * rankRetry); time.Now().Before(end); time.Sleep(rankRetry / 4) {
		require.Equal(t, http.StatusServiceUnavailable, leader.health(), "a rank is missing")
		require.Equal(t, http.StatusServiceUnavailable, second.health(), "a rank is missing")
	}
	first := start(t, rankOf(port, 1, 3))
	for _, e := range []*endpoint{leader, first, second} {
		e.awaitHealth(http.StatusOK)
	}
}

func TestRanks_InOneProcessNeedNoDNS(t *testing.T) {
	port := freePort(t)
	named := func(c *Config) { c.Leader = "rank-0.chat.shop.svc" }
	other := start(t, rankOf(port, 1, 2, named))
	leader := start(t, rankOf(port, 0, 2, named))
	leader.awaitHealth(http.StatusOK)
	other.awaitHealth(http.StatusOK)
	leader.stop()
	require.NoError(t, leader.exit())
	require.ErrorContains(t, other.exit(), "has lost its leader")
	_, known := leadersHere.Load("rank-0.chat.shop.svc")
	require.False(t, known)
}

func TestRanks_CrashOfOneRankEndsAll(t *testing.T) {
	for lost, name := range map[int]string{0: "the leader", 1: "another rank"} {
		t.Run(name, func(t *testing.T) {
			port := freePort(t)
			var all []*endpoint
			for rank := range 3 {
				all = append(all, start(t, rankOf(port, rank, 3, func(c *Config) { c.AllowFaultAPI = true })))
			}
			for _, e := range all {
				e.awaitHealth(http.StatusOK)
			}
			require.Equal(t, http.StatusOK, all[lost].do(http.MethodPost, "/faults", `{"crashAfter": "1ms", "exitCode": 3}`).status)
			for rank, e := range all {
				err := e.exit()
				require.Error(t, err, "rank %d", rank)
				if rank != lost {
					require.ErrorContains(t, err, "lost")
				}
			}
		})
	}
}

func TestRanks_StoppedRankEndsWithoutAnError(t *testing.T) {
	port := freePort(t)
	leader, other := start(t, rankOf(port, 0, 2)), start(t, rankOf(port, 1, 2))
	leader.awaitHealth(http.StatusOK)
	other.awaitHealth(http.StatusOK)
	other.stop()
	require.NoError(t, other.exit())
	require.ErrorContains(t, leader.exit(), "lost rank 1 of 2")
}

func TestRanks_StoppedLeaderFinishesItsRequestsUnlessItLosesARank(t *testing.T) {
	for name, loses := range map[string]bool{"the other rank stays": false, "the other rank stops": true} {
		t.Run(name, func(t *testing.T) {
			port := freePort(t)
			leader, other := start(t, rankOf(port, 0, 2, func(c *Config) { c.TokenRate = 20 })), start(t, rankOf(port, 1, 2))
			leader.awaitHealth(http.StatusOK)
			other.awaitHealth(http.StatusOK)
			in := leader.stream(t.Context(), "/v1/completions", `{"model":"echo","prompt":"0 1 2 3 4 5 6 7 8 9","stream":true}`)
			data, ok := in.next()
			require.True(t, ok)
			leader.stop()
			if loses {
				other.stop()
				require.ErrorContains(t, leader.exit(), "lost rank 1 of 2")
				return
			}
			last := data
			for ; ok; data, ok = in.next() {
				last = data
			}
			require.Equal(t, "[DONE]", last)
			require.NoError(t, leader.exit())
			require.ErrorContains(t, other.exit(), "has lost its leader")
		})
	}
}

func TestRanks_LeaderRefusesRanksOfAnotherServer(t *testing.T) {
	for says, change := range map[string]func(*Config){
		`it has epoch "2", and the leader has epoch "1"`:                        func(c *Config) { c.UnitEpoch = "2" },
		`it has version "v2", and the leader has version "v1"`:                  func(c *Config) { c.VersionLabel = "v2" },
		`it has model "echo" on 3 hosts, and the leader has model "echo" on 2`:  func(c *Config) { c.Hosts = 3 },
		`it has model "other" on 2 hosts, and the leader has model "echo" on 2`: func(c *Config) { c.Model = "other" },
	} {
		t.Run(says, func(t *testing.T) {
			port := freePort(t)
			leader := start(t, rankOf(port, 0, 2))
			other := start(t, rankOf(port, 1, 2, change))
			require.ErrorContains(t, other.exit(), "the leader refused this rank: "+says)
			require.Equal(t, http.StatusServiceUnavailable, leader.health())
			start(t, rankOf(port, 1, 2)).awaitHealth(http.StatusOK)
			leader.awaitHealth(http.StatusOK)
			late := start(t, rankOf(port, 1, 2))
			require.ErrorContains(t, late.exit(), "all ranks have already met")
		})
	}
}

func TestRanks_ExitIfTheyDoNotMeetInTime(t *testing.T) {
	for rank := range 2 {
		alone := start(t, rankOf(freePort(t), rank, 2, func(c *Config) { c.RendezvousTimeout = 50 * time.Millisecond }))
		require.ErrorContains(t, alone.exit(), fmt.Sprintf("rank %d of 2 has not met the other ranks within 50ms", rank))
	}
}

func TestRanks_BadConfigurationIsRefused(t *testing.T) {
	for says, cfg := range map[string]Config{
		"WINDLASS_HOSTS must be 1 to 100, not 101": {Hosts: 101},
		"WINDLASS_RANK must be 0 to 1, not 2":      {Hosts: 2, Rank: 2, Leader: "x"},
		"needs the address of its leader":          {Hosts: 2, Rank: 1},
	} {
		_, err := New(cfg)
		require.ErrorContains(t, err, says)
	}
}
