package modelserver

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// meeting starts a prefill and a decode server of SGLang.
func meeting(t *testing.T, prefill, decode variables) (p, d *endpoint) {
	t.Helper()
	p = startEngineReady(t, "sglang --model m --enable-metrics --disaggregation-mode prefill --disaggregation-bootstrap-port 0", prefill)
	d = startEngineReady(t, "sglang --model m --enable-metrics --disaggregation-mode decode", decode)
	return p, d
}

// leg sends a request to a server. The request names the prefill server p and one of its rooms.
func leg(to, p *endpoint, prompt string, room int) reply {
	to.t.Helper()
	return to.do("POST", "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":3,"bootstrap_host":"127.0.0.1","bootstrap_port":%d,"bootstrap_room":%d}`, prompt, p.server.rooms.port, room))
}

func TestBootstrapRooms(t *testing.T) {
	both := func(p, d *endpoint, prefillPrompt, decodePrompt string, room int) (ofPrefill, ofDecode reply) {
		answered := make(chan reply, 1)
		go func() {
			r, _ := p.try("POST", "/v1/completions", fmt.Sprintf(`{"prompt":%q,"max_tokens":1,"bootstrap_room":%d}`, prefillPrompt, room))
			answered <- r
		}()
		ofDecode = leg(d, p, decodePrompt, room)
		return <-answered, ofDecode
	}
	t.Run("both legs of a request meet", func(t *testing.T) {
		p, d := meeting(t, nil, nil)
		for room := range 3 {
			a, b := both(p, d, "a b c", "a b c", room)
			require.Equal(t, http.StatusOK, a.status, string(a.body))
			require.Equal(t, http.StatusOK, b.status, string(b.body))
			require.Equal(t, "a b c", parse[clientCompletion](t, b.body).Choices[0].Text)
		}
		require.Empty(t, p.server.rooms.rooms)
		require.Equal(t, "prefill", labels(p.scrape()["sglang:num_running_reqs"].Metric[0])["engine_type"])
	})
	t.Run("different versions fail both legs", func(t *testing.T) {
		p, d := meeting(t, variables{"MODELSERVER_VERSION_LABEL": "v1"}, variables{"MODELSERVER_VERSION_LABEL": "v2"})
		a, b := both(p, d, "a b", "a b", 1)
		for _, r := range []reply{a, b} {
			require.Equal(t, http.StatusConflict, r.status)
			require.Contains(t, string(r.body), "the KV caches have different layouts")
			require.Contains(t, string(r.body), "kv_incompatible")
		}
	})
	t.Run("a lost transfer fails both legs", func(t *testing.T) {
		p, d := meeting(t, variables{"MODELSERVER_FAULT_LOSE_TRANSFERS": "true"}, nil)
		a, b := both(p, d, "a b", "a b", 1)
		for _, r := range []reply{a, b} {
			require.Equal(t, http.StatusInternalServerError, r.status, string(r.body))
		}
	})
	t.Run("prefill generates one token, whatever the request says", func(t *testing.T) {
		p, d := meeting(t, nil, nil)
		got := make(chan reply, 1)
		go func() {
			r, _ := p.try("POST", "/v1/completions", `{"prompt":"a b c","bootstrap_room":1}`)
			got <- r
		}()
		require.Equal(t, "a b c", parse[clientCompletion](t, leg(d, p, "a b c", 1).body).Choices[0].Text)
		require.Equal(t, "a", parse[clientCompletion](t, (<-got).body).Choices[0].Text)
	})
	t.Run("another prompt fails decode", func(t *testing.T) {
		p, d := meeting(t, nil, nil)
		_, b := both(p, d, "a b", "c d", 1)
		require.Equal(t, http.StatusInternalServerError, b.status)
		require.Contains(t, string(b.body), "another prompt")
	})
	t.Run("a leg without the other leg fails", func(t *testing.T) {
		soon := variables{"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "0.05"}
		p, d := meeting(t, soon, soon)
		r := leg(p, p, "a", 7)
		require.Equal(t, http.StatusInternalServerError, r.status)
		require.Contains(t, string(r.body), "no decode server came to bootstrap room 7")
		require.Equal(t, http.StatusInternalServerError, leg(d, p, "a", 8).status)
		require.Eventually(t, func() bool {
			p.server.rooms.mu.Lock()
			defer p.server.rooms.mu.Unlock()
			return len(p.server.rooms.rooms) == 0
		}, patience, 1e6)
		p.stop()
		require.NoError(t, p.exit())
		r = leg(d, p, "a", 9)
		require.Equal(t, http.StatusInternalServerError, r.status)
		require.Contains(t, string(r.body), "connection refused")
	})
	t.Run("a request without a room is refused", func(t *testing.T) {
		_, d := meeting(t, nil, nil)
		require.Equal(t, http.StatusBadRequest, d.do("POST", "/v1/completions", `{"prompt":"a"}`).status)
	})
	t.Run("a timeout that is not a number is refused", func(t *testing.T) {
		_, _, err := ParseArgs([]string{"sglang", "--model", "m"}, variables{"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "soon"}.lookup)
		require.ErrorContains(t, err, "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT")
	})
}
