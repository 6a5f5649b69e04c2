package api_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Concurrent calls share transactions, but each call succeeds or fails on its own.
func TestMutations_ConcurrentCallsAreDoneOnceOrRefused(t *testing.T) {
	const room = 20
	for name, open := range map[string]func(*testing.T) store.Store{"memory": newStore, "MariaDB": newDatabase} {
		t.Run(name, func(t *testing.T) {
			w := setupOn(t, open(t), limited(model.Limits{Apps: room + 1}))
			w.deploy("chat")
			w.settle("chat")

			type answer struct {
				res *windlassv1.DeployResponse
				err error
			}
			var mu sync.Mutex
			answers := map[string][]answer{}
			var calls sync.WaitGroup
			call := func(key string, do func() (*windlassv1.DeployResponse, error)) {
				calls.Go(func() {
					res, err := do()
					mu.Lock()
					defer mu.Unlock()
					answers[key] = append(answers[key], answer{res, err})
				})
			}
			for i := range 30 {
				for range 2 { // repeated, as by a client that got no answer
					key := fmt.Sprintf("new-%d", i)
					call(key, func() (*windlassv1.DeployResponse, error) { return w.tryDeploy(key, key) })
				}
				call("nowhere", func() (*windlassv1.DeployResponse, error) {
					return w.tryDeploy(fmt.Sprintf("nowhere-%d", i), "", func(s *windlassv1.DeploymentSpec) { s.Regions = []string{"mars"} })
				})
				call("chat", func() (*windlassv1.DeployResponse, error) { return w.tryDeploy("chat", "", args(fmt.Sprint(i))) })
				if i%3 == 0 {
					call("scaled", func() (*windlassv1.DeployResponse, error) {
						_, err := w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: int32(i)})
						return nil, err
					})
				}
			}
			calls.Wait()

			made := 0
			for key, all := range answers {
				for _, a := range all {
					switch {
					case strings.HasPrefix(key, "new-") && a.err == nil:
						require.NoError(t, all[0].err, "two calls with the same idempotency key have the same answer")
						require.Equal(t, all[0].res.GetDeploymentId(), a.res.GetDeploymentId())
						require.Equal(t, w.app(key).GetId(), a.res.GetAppId())
						made++
					case strings.HasPrefix(key, "new-"):
						limitOf(t, a.err, overQuota, "apps")
					case key == "nowhere":
						require.ErrorContains(t, a.err, "mars")
					default:
						require.NoError(t, a.err, key)
					}
				}
			}
			require.Equal(t, 2*room, made)
			require.EqualValues(t, room+1, w.usage().Apps)

			// Refused calls leave nothing, and versions have no gaps.
			require.EqualValues(t, 31, w.app("chat").GetLatestVersion())
			for n := range 31 {
				w.version("chat", int32(n+1))
			}
			page, err := w.history(w.owner).ListAudit(t.Context(), &windlassv1.ListAuditRequest{Page: &windlassv1.PageRequest{Size: 500}})
			require.NoError(t, err)
			deployed := 0
			for _, e := range page.GetEntries() {
				if e.GetResourceKind() == "deployment" {
					deployed++
				}
			}
			require.Equal(t, room+31, deployed)
			listed, err := w.apps(w.owner).ListApps(t.Context(), &windlassv1.ListAppsRequest{Page: &windlassv1.PageRequest{Size: 100}})
			require.NoError(t, err)
			require.Len(t, listed.GetApps(), room+1)
		})
	}
}
