package fleet

import (
	"crypto/ed25519"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/proof"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
)

// agentKey is the key of an agent, nil for an agent of an earlier release.
type agentKey = ed25519.PrivateKey

func newKey(t *testing.T) (ed25519.PublicKey, agentKey) {
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	return public, private
}

// call returns a call of an agent with the credential, from the address.
func call(t *testing.T, credential string, key agentKey, session, address string) rpc.Call {
	const procedure = agentv1connect.AgentServiceGetSecretsProcedure
	out := rpc.Call{Procedure: procedure, Header: http.Header{}, Client: netip.MustParseAddr(address)}
	out.Header.Set("Authorization", "Bearer "+credential)
	if key != nil {
		value, err := proof.Sign(key, procedure, session, credential, time.Now())
		require.NoError(t, err)
		out.Header.Set(proof.Header, value)
	}
	return out
}

func (h *harness) audits() (out []model.Audit) {
	h.update(func(tx store.Tx) error {
		rows, err := tx.ListAudit("ws_1", store.Page{Limit: 100})
		for _, a := range rows {
			if a.ActorID == "credential "+withoutKey || a.ActorID == "credential "+twoPlaces {
				out = append(out, a)
			}
		}
		return err
	})
	return out
}

func TestProof(t *testing.T) {
	t.Run("a credential is useless without the key to which it is bound", func(t *testing.T) {
		h := setup(t)
		h.token("token", time.Hour)
		public, key := newKey(t)
		_, stolen := newKey(t)
		joined, err := h.svc.Join(t.Context(), &agentv1.JoinRequest{Token: "token", JoinId: joinID, PublicKey: public})
		require.NoError(t, err)
		credential := joined.Credential.Value
		admit := func(c rpc.Call) error {
			_, err := h.svc.Admit(t.Context(), c)
			return err
		}
		require.NoError(t, admit(call(t, credential, key, "run_1", "192.0.2.1")))
		for _, thief := range []agentKey{nil, stolen} {
			requireRefused(t, admit(call(t, credential, thief, "run_2", "198.51.100.7")), connect.CodeUnauthenticated, unauthenticated)
		}
		other := call(t, credential, key, "run_1", "192.0.2.1")
		other.Procedure = agentv1connect.AgentServiceReportProcedure
		requireRefused(t, admit(other), connect.CodeUnauthenticated, unauthenticated)

		require.EqualValues(t, 3, testutil.ToFloat64(h.svc.misuse.WithLabelValues(withoutKey)))
		told := h.audits()
		require.Len(t, told, 1, "the owner gets only one entry")
		require.Equal(t, []string{"region", region, "198.51.100.7"}, []string{told[0].ResourceKind, told[0].ResourceID, told[0].Source})
		require.Contains(t, told[0].After, "has no proof of the key")
	})
	t.Run("a wrong clock does not count as misuse", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := setup(t)
			public, key := newKey(t)
			good, err := h.svc.issueCredential(region, public, time.Now())
			require.NoError(t, err)
			late := call(t, good.Value, key, "run_1", "192.0.2.1")
			time.Sleep(proof.Window + time.Second)
			_, err = h.svc.Admit(t.Context(), late)
			require.ErrorContains(t, err, "compare the clocks")
			require.Empty(t, h.audits())
		})
	})
	t.Run("a credential of an earlier release works until it is renewed, and is bound then", func(t *testing.T) {
		h := setup(t)
		old, err := h.svc.issueCredential(region, nil, time.Now())
		require.NoError(t, err)
		public, key := newKey(t)
		another, _ := newKey(t)
		admission, err := h.svc.Admit(t.Context(), call(t, old.Value, nil, "", "192.0.2.1"))
		require.NoError(t, err)
		same, err := h.svc.RenewCredential(admission.With(t.Context()), &agentv1.RenewCredentialRequest{})
		require.NoError(t, err)
		_, err = h.svc.Admit(t.Context(), call(t, same.Credential.Value, nil, "", "192.0.2.1"))
		require.NoError(t, err, "an agent of an earlier release renews without a key")

		bound, err := h.svc.RenewCredential(admission.With(t.Context()), &agentv1.RenewCredentialRequest{PublicKey: public})
		require.NoError(t, err)
		_, err = h.svc.Admit(t.Context(), call(t, bound.Credential.Value, nil, "", "192.0.2.1"))
		require.ErrorContains(t, err, "needs its key")
		admission, err = h.svc.Admit(t.Context(), call(t, bound.Credential.Value, key, "run_1", "192.0.2.1"))
		require.NoError(t, err)
		for _, request := range []*agentv1.RenewCredentialRequest{{}, {PublicKey: another}} {
			renewed, err := h.svc.RenewCredential(admission.With(t.Context()), request)
			require.NoError(t, err)
			id, err := h.svc.Verify(renewed.Credential.Value, time.Now())
			require.NoError(t, err)
			require.Equal(t, public, id.Key, "the credential stays bound to the proved key")
		}
		_, err = h.svc.RenewCredential(admission.With(t.Context()), &agentv1.RenewCredentialRequest{PublicKey: []byte("short")})
		require.ErrorContains(t, err, "has 32 bytes, but this key has 5")
	})
	t.Run("use in another session than the region's is reported, even if another process has that session", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := setup(t)
			public, key := newKey(t)
			starts := func(session string, features ...string) {
				h.update(func(tx store.Tx) error {
					_, _, err := tx.StartSession(region, session, time.Hour.Milliseconds(), model.Region{AgentFeatures: features})
					return err
				})
			}
			renews := func(session string) {
				good, err := h.svc.issueCredential(region, public, time.Now())
				require.NoError(t, err)
				admission, err := h.svc.Admit(t.Context(), call(t, good.Value, key, session, "192.0.2.1"))
				require.NoError(t, err)
				_, err = h.svc.RenewCredential(admission.With(t.Context()), &agentv1.RenewCredentialRequest{})
				require.NoError(t, err)
				time.Sleep(overlapFor / 2)
			}
			starts("session_1")
			renews("run_1")
			renews("run_1")
			renews("run_1")
			require.Empty(t, h.audits(), "an agent of an earlier release has proofs of another session")

			proves := agentv1.Feature_FEATURE_SESSION_PROOF.String()
			starts("run_1", proves)
			renews("run_1")
			renews("run_2")
			starts("run_2", proves)
			renews("run_1")
			renews("run_2")
			require.Empty(t, h.audits(), "an agent may replace another")

			for range 3 {
				renews("run_3") // its session has no stream
			}
			told := h.audits()
			require.Len(t, told, 1)
			require.Contains(t, told[0].After, "session run_3 uses it, but session run_2 is the region's current session")
		})
	})
	t.Run("alternating use from two places is reported to the owner", func(t *testing.T) {
		h := setup(t)
		public, key := newKey(t)
		good, err := h.svc.issueCredential(region, public, time.Now())
		require.NoError(t, err)
		use := func(sessions ...string) {
			for _, session := range sessions {
				_, err := h.svc.Admit(t.Context(), call(t, good.Value, key, session, "192.0.2.1"))
				require.NoError(t, err)
			}
		}
		use("run_1", "run_1", "run_2", "run_1", "run_2", "run_3", "run_3", "run_4")
		require.Empty(t, h.audits(), "agents that replace each other, with running calls")
		use("run_3", "run_4", "run_3")
		told := h.audits()
		require.Len(t, told, 1)
		require.Contains(t, told[0].After, "session run_3 and session run_4 use it alternately")
		require.Positive(t, testutil.ToFloat64(h.svc.misuse.WithLabelValues(twoPlaces)))
	})
}
