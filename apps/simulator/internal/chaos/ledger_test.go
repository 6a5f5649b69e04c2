package chaos

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// ledgerOf writes entries about zero-0, or pool-0, in region-1.
type ledgerOf struct {
	app        string
	entries    []entry
	generation int64
	has        counts
}

func (l *ledgerOf) change(connection int64, to counts) {
	e := entry{kind: ledgerCount, connection: connection, app: l.app, place: here, wasGeneration: l.generation, isAt: l.generation + 1, was: l.has, is: to}
	l.generation++
	l.has = to
	l.entries = append(l.entries, e)
}

func (l *ledgerOf) decision(connection int64, from, to counts) {
	l.entries = append(l.entries, entry{
		kind: ledgerDecision, connection: connection, app: l.app, place: place{region: here.region}, from: from, to: to, decidesRoles: to.roles != nil,
	})
}

func (l *ledgerOf) rollout(connection int64) {
	l.entries = append(l.entries, entry{kind: ledgerRollout, connection: connection, app: l.app})
}

func n(replicas int) counts { return counts{replicas: replicas} }

func ofPool(replicas, prefillCount, decodeCount int) counts {
	return counts{replicas, map[string]int{prefill: prefillCount, decode: decodeCount}}
}

// decides are the instances of a decision, whose replicas are not set.
func decides(prefillCount, decodeCount int) counts { return ofPool(0, prefillCount, decodeCount) }

func TestLedger_FindsTheWriterOfACount(t *testing.T) {
	for name, c := range map[string]struct {
		do                           func(l *ledgerOf)
		decided, delayed, woken, bad int
	}{
		"decisions": {func(l *ledgerOf) {
			l.change(1, n(2))
			l.decision(1, n(1), n(2))
			l.change(2, n(0))
			l.decision(2, n(2), n(0))
		}, 2, 0, 0, 0},
		"a decision that changes nothing": {func(l *ledgerOf) { l.decision(1, n(1), n(1)) }, 0, 0, 0, 0},
		"a decision for a region that lags": {func(l *ledgerOf) {
			l.decision(1, n(1), n(2))
			l.change(2, n(2))
		}, 0, 1, 0, 0},
		"a wake, and a decision by the same connection": {func(l *ledgerOf) {
			l.has = n(0)
			l.change(1, n(1))
			l.change(1, n(2))
			l.decision(1, n(1), n(2))
		}, 1, 0, 1, 0},
		"a decision that looks like a wake": {func(l *ledgerOf) {
			l.has = n(0)
			l.change(1, n(1))
			l.decision(1, n(0), n(1))
		}, 1, 0, 0, 0},
		"a rollout": {func(l *ledgerOf) {
			l.rollout(1)
			l.change(1, n(3))
			l.change(2, n(2))
			l.entries[2].moving = true
			l.change(3, n(1))
			l.rollout(3)
		}, 0, 0, 0, 0},
		"a decision after a rollout, by the same connection": {func(l *ledgerOf) {
			l.rollout(1)
			l.change(1, n(3))
			l.change(1, n(2))
			l.decision(1, n(3), n(2))
			l.rollout(1)
		}, 1, 0, 0, 0},
		"another writer": {func(l *ledgerOf) { l.change(1, n(2)) }, 0, 0, 0, 1},
		"another writer after a decision": {func(l *ledgerOf) {
			l.change(1, n(2))
			l.decision(1, n(1), n(2))
			l.change(1, n(3))
		}, 1, 0, 0, 1},
		"another writer before a decision": {func(l *ledgerOf) {
			l.change(1, n(2))
			l.change(2, n(3))
			l.decision(2, n(2), n(3))
		}, 1, 0, 0, 1},
		"a decision for another number":        {func(l *ledgerOf) { l.change(1, n(2)); l.decision(1, n(1), n(3)) }, 0, 0, 0, 1},
		"a decision by another connection":     {func(l *ledgerOf) { l.change(1, n(2)); l.decision(2, n(1), n(2)) }, 0, 0, 0, 1},
		"two changes and one decision":         {func(l *ledgerOf) { l.change(1, n(3)); l.change(1, n(2)); l.decision(1, n(1), n(2)) }, 1, 0, 0, 1},
		"a change without a generation":        {func(l *ledgerOf) { l.change(1, n(2)); l.entries[0].isAt--; l.decision(1, n(1), n(2)) }, 0, 0, 0, 1},
		"a wake to more than a request starts": {func(l *ledgerOf) { l.has = n(0); l.change(1, n(2)) }, 0, 0, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := &ledgerOf{app: zeroName, has: n(1)}
			c.do(l)
			a := auditLedger(l.entries)
			require.Len(t, a.bad, c.bad, "%v", a.bad)
			require.Equal(t, []int{c.decided, c.delayed, c.woken}, []int{a.decided, a.delayed, a.woken})
			require.Equal(t, c.bad > 0, a.near != "")
		})
	}
}

func TestLedger_HoldsEachRole(t *testing.T) {
	for name, c := range map[string]struct {
		do                  func(l *ledgerOf)
		decided, woken, bad int
	}{
		"a decision for both roles": {func(l *ledgerOf) { l.change(1, ofPool(100, 2, 3)); l.decision(1, decides(1, 1), decides(2, 3)) }, 1, 0, 0},
		"to zero with other numbers for the start": {func(l *ledgerOf) {
			l.has = ofPool(100, 2, 3)
			l.change(1, ofPool(100, 1, 1))
			l.change(1, ofPool(0, 1, 1))
			l.decision(1, decides(2, 3), decides(0, 0))
		}, 2, 0, 0},
		"to zero after its decision": {func(l *ledgerOf) {
			l.has = ofPool(100, 2, 3)
			l.change(1, ofPool(100, 1, 1))
			l.decision(1, decides(2, 3), decides(0, 0))
			l.change(1, ofPool(0, 1, 1))
			l.change(2, ofPool(100, 1, 1))
		}, 1, 1, 0},
		"woken":                      {func(l *ledgerOf) { l.has = ofPool(0, 1, 1); l.change(1, ofPool(100, 1, 1)) }, 0, 1, 0},
		"a wake to half of the pool": {func(l *ledgerOf) { l.has = ofPool(0, 1, 1); l.change(1, ofPool(50, 1, 1)) }, 0, 0, 1},
		"a wake with other numbers":  {func(l *ledgerOf) { l.has = ofPool(0, 1, 1); l.change(1, ofPool(100, 1, 2)) }, 0, 0, 1},
		"one role too many":          {func(l *ledgerOf) { l.change(1, ofPool(100, 2, 3)); l.decision(1, decides(1, 1), decides(2, 2)) }, 0, 0, 1},
		"a role by itself":           {func(l *ledgerOf) { l.change(1, ofPool(100, 2, 1)) }, 0, 0, 1},
		"one role goes to zero":      {func(l *ledgerOf) { l.change(1, ofPool(100, 0, 1)); l.decision(1, decides(1, 1), decides(0, 0)) }, 0, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := &ledgerOf{app: poolName, has: ofPool(100, 1, 1)}
			c.do(l)
			a := auditLedger(l.entries)
			require.Len(t, a.bad, c.bad, "%v", a.bad)
			require.Equal(t, []int{c.decided, c.woken}, []int{a.decided, a.woken})
		})
	}
}
