package certificates

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRenewal_FailureIsLoggedOnceAnHour(t *testing.T) {
	begin := time.Unix(1_800_000_000, 0)
	const day = 24 * time.Hour
	for name, c := range map[string]struct{ life, left time.Duration }{
		"of 90 days": {90 * day, 15 * day}, "of 6 days": {6 * day, day}, "of a year": {365 * day, 15 * day},
	} {
		v := validity{from: begin, to: begin.Add(c.life)}
		require.False(t, v.isOverdue(v.to.Add(-c.left)), name)
		require.True(t, v.isOverdue(v.to.Add(-c.left+time.Second)), name)
		require.True(t, v.isOverdue(v.to.Add(time.Hour)), name)
	}

	a := &ACME{valid: map[string]validity{
		"late.test": {from: begin, to: begin.Add(90 * day)}, "new.test": {from: begin.Add(60 * day), to: begin.Add(150 * day)},
	}}
	now := begin.Add(80 * day)
	require.Len(t, a.overdueCertificates(now), 1)
	require.Contains(t, a.valid, "late.test")
	require.Empty(t, a.overdueCertificates(now.Add(remind-time.Second)))
	require.Contains(t, a.overdueCertificates(now.Add(remind)), "late.test")
}
