package session

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/pkg/proof"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
)

// shelf is a Shared in memory.
type shelf struct{ value []byte }

func (s *shelf) Load(context.Context) ([]byte, error) { return s.value, nil }

func (s *shelf) Store(_ context.Context, value []byte) error {
	s.value = value
	return nil
}

func TestKey(t *testing.T) {
	const procedure = agentv1connect.AgentServiceReportProcedure
	signed := func(c *Credentials, at time.Time) error {
		public, err := c.publicKey()
		require.NoError(t, err)
		header := http.Header{}
		header.Set("Authorization", "Bearer wla_x")
		c.Sign(procedure, header)
		_, err = proof.Verify(header.Get(proof.Header), public, procedure, "wla_x", at)
		return err
	}
	t.Run("the key is made once, and signs calls after a restart", func(t *testing.T) {
		files := disk.NewMemory()
		c, err := OpenCredentials(files, "credential.json")
		require.NoError(t, err)
		header := http.Header{}
		c.Sign(procedure, header)
		require.Empty(t, header, "there is no key yet")
		first, err := c.publicKey()
		require.NoError(t, err)
		next, err := OpenCredentials(files, "credential.json")
		require.NoError(t, err)
		require.NoError(t, signed(next, time.Now()))
		second, err := next.publicKey()
		require.NoError(t, err)
		require.Equal(t, first, second)
		require.NotEqual(t, c.session, next.session, "each start has its own session")
	})
	t.Run("a key file with other content is an error that says what to do", func(t *testing.T) {
		files := disk.NewMemory()
		require.NoError(t, files.Replace(keyName, []byte("x")))
		_, err := OpenCredentials(files, "credential.json")
		require.ErrorContains(t, err, "agent.key (delete the file and give a new join token)")
	})
	t.Run("agents that share a credential share its key", func(t *testing.T) {
		here, there, between := t.TempDir(), t.TempDir(), &shelf{}
		path := func(dir string) string { return filepath.Join(dir, "credential.json") }
		c, err := openCredentials(path(here))
		require.NoError(t, err)
		ours, err := c.publicKey()
		require.NoError(t, err)
		require.NoError(t, c.store(&agentv1.Credential{Value: "wla_x", ExpiresAt: 5}, time.UnixMilli(3)))
		require.NoError(t, Give(t.Context(), path(here), between))
		require.NoError(t, Fetch(t.Context(), path(there), between))
		other, err := openCredentials(path(there))
		require.NoError(t, err)
		theirs, err := other.publicKey()
		require.NoError(t, err)
		require.Equal(t, ours, theirs)
		require.Equal(t, "wla_x", other.Token())

		// An agent of an earlier release reads the credential, and shares a credential without a
		// key.
		var old identity
		require.NoError(t, json.Unmarshal(between.value, &old))
		require.Equal(t, "wla_x", old.Credential)
		old.Credential, old.IssuedAt = "wla_y", 4
		between.value, err = json.Marshal(old)
		require.NoError(t, err)
		require.NoError(t, Fetch(t.Context(), path(here), between))
		c, err = openCredentials(path(here))
		require.NoError(t, err)
		require.Equal(t, "wla_y", c.Token())
		require.NoError(t, signed(c, time.Now()))
	})
	t.Run("an agent whose clock is wrong follows the control plane's", func(t *testing.T) {
		c, err := OpenCredentials(disk.NewMemory(), "credential.json")
		require.NoError(t, err)
		_, err = c.publicKey()
		require.NoError(t, err)
		c.id.Credential = "wla_x"
		theirs := time.Now().Add(time.Hour)
		_, refusing := agentv1connect.NewAgentServiceHandler(agentv1connect.UnimplementedAgentServiceHandler{}, rpc.HandlerOptions(rpc.Config{
			Admit: func(context.Context, rpc.Call) (rpc.Admission, error) {
				return rpc.Admission{}, connect.NewError(connect.CodeUnauthenticated, proof.ErrTime)
			},
		})...)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", theirs.UTC().Format(http.TimeFormat))
			refusing.ServeHTTP(w, r)
		}))
		defer server.Close()
		client := agentv1connect.NewAgentServiceClient(server.Client(), server.URL,
			rpc.ClientOptions(rpc.ClientConfig{Token: c.Token, Sign: c.Sign, Refused: c.Refused})...)
		require.Error(t, signed(c, theirs))
		_, err = client.Report(t.Context(), &agentv1.ReportRequest{})
		require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(err))
		require.NoError(t, signed(c, theirs))

		theirs = time.Now()
		stream, err := client.Watch(t.Context(), &agentv1.WatchRequest{})
		if err == nil {
			require.False(t, stream.Receive())
			err = stream.Err()
		}
		require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(err), "%v", err)
		require.NoError(t, signed(c, theirs), "the answer of a stream also has the control plane's time")
	})
}
