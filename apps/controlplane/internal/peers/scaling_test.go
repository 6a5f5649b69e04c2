package peers

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestScaling_ComesFromTheProcessWithTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		var has *windlassv1.RegionScaling
		a := h.start("cp_a")
		b := h.start("cp_b", func(cfg *Config) {
			cfg.Agents = failing{}
			cfg.Scaling = func(region, app string) *windlassv1.RegionScaling {
				require.Equal(t, "reg_1 app_1", region+" "+app)
				return has
			}
		})
		defer a.stop()
		defer b.stop()
		time.Sleep(time.Second)
		read := func(p *process) (*windlassv1.RegionScaling, error) { return p.Scaling(t.Context(), "reg_1", "app_1") }
		stream := func(id string) {
			require.NoError(t, h.db.Update(t.Context(), func(tx store.Tx) error { return tx.PutStream("reg_1", id) }))
		}
		_, err := read(a)
		require.ErrorIs(t, err, model.ErrAgentUnreachable, "no process has the stream")
		for _, holder := range []string{"cp_a", "cp_unknown"} {
			stream(holder)
			_, err = read(a)
			require.ErrorIs(t, err, model.ErrAgentUnreachable, holder)
		}
		stream("cp_b")
		for _, p := range []*process{a, b} {
			has = nil
			got, err := read(p)
			require.NoError(t, err)
			require.Nil(t, got, "the region does not report")
			has = &windlassv1.RegionScaling{Wanted: 7}
			got, err = read(p)
			require.NoError(t, err)
			require.EqualValues(t, 7, got.GetWanted())
		}
		h.net.plug("cp_b:1", nil)
		_, err = read(a)
		require.ErrorIs(t, err, model.ErrAgentUnreachable)
	})
	t.Run("a process that has lost it does not answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := setup(t)
			a, b := h.start("cp_a"), h.start("cp_b")
			defer a.stop()
			defer b.stop()
			time.Sleep(time.Second)
			require.NoError(t, h.db.Update(t.Context(), func(tx store.Tx) error { return tx.PutStream("reg_1", "cp_b") }))
			_, err := a.Scaling(t.Context(), "reg_1", "app_1")
			require.ErrorIs(t, err, model.ErrAgentUnreachable)
		})
	})
	t.Run("an outage of the database is no answer", func(t *testing.T) {
		s := &Service{cfg: Config{ID: "cp_a", Store: lost{}, Agents: noAgents{}}}
		_, err := s.Scaling(t.Context(), "reg_1", "app_1")
		require.ErrorContains(t, err, "connection refused")
		require.NotErrorIs(t, err, model.ErrAgentUnreachable)
	})
}
