package health

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var start = time.Unix(1_800_000_000, 0)

func after(s State, now time.Time, outcomes ...Outcome) State {
	for _, o := range outcomes {
		s, _ = s.After(o, now, Default())
	}
	return s
}

func TestState_OnlyFailuresInARowEject(t *testing.T) {
	for name, test := range map[string]struct {
		outcomes []Outcome
		out      bool
	}{
		"four failures":                 {[]Outcome{Failure, Failure, Timeout, Failure}, false},
		"five failures":                 {[]Outcome{Failure, Timeout, Failure, Failure, Failure}, true},
		"a success in between":          {[]Outcome{Failure, Failure, Failure, Failure, Success, Failure, Failure}, false},
		"one refusal":                   {[]Outcome{Refusal}, false},
		"two refusals":                  {[]Outcome{Refusal, Refusal}, true},
		"refusals with success between": {[]Outcome{Refusal, Success, Refusal}, false},
		"refusals count among failures": {[]Outcome{Failure, Failure, Failure, Failure, Refusal}, true},
		"nothing":                       {nil, false},
	} {
		s := after(State{}, start, test.outcomes...)
		want := In
		if test.out {
			want = Out
		}
		require.Equal(t, want, s.Verdict(start), name)
	}
}

func TestState_OneTrialAtATimeEndsOrProlongsAnEjection(t *testing.T) {
	s := after(State{}, start, Refusal, Refusal)
	require.Equal(t, Out, s.Verdict(start.Add(999*time.Millisecond)))
	now := start.Add(time.Second)
	require.Equal(t, Trial, s.Verdict(now))
	s = s.Try(now)
	require.Equal(t, Out, s.Verdict(now), "only one request at a time is a trial")
	require.Equal(t, Trial, s.Cancelled().Verdict(now), "a trial without an outcome allows another trial")
	require.Equal(t, Trial, s.Verdict(now.Add(trialLimit)), "and so does a trial that lasts too long")

	failed, ejected := s.After(Failure, now, Default())
	require.True(t, ejected)
	require.Equal(t, 2*time.Second, failed.Until().Sub(now), "twice as long as before")
	back, _ := s.After(Success, now, Default())
	require.Equal(t, In, back.Verdict(now))

	again := after(back, now.Add(time.Second), Refusal, Refusal)
	require.Equal(t, 2*time.Second, again.Until().Sub(now.Add(time.Second)), "the last ejection was a short time ago")
	later := now.Add(Default().Longest + time.Minute)
	forgiven := after(back, later, Refusal, Refusal)
	require.Equal(t, time.Second, forgiven.Until().Sub(later))
}

// Requests that were sent before an ejection can end after it.
func TestState_LateOutcomesNeitherShortenNorProlongAnEjection(t *testing.T) {
	s := after(State{}, start, Refusal, Refusal)
	require.Equal(t, s, after(s, start.Add(time.Minute), Success, Failure, Refusal, Timeout))
}

func TestState_EveryInstanceGetsATrialInTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, now, p := State{}, start, Default()
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "pause")))
			switch s.Verdict(now) {
			case Trial:
				s = s.Try(now)
			case Out:
				if rapid.Bool().Draw(t, "client went away") {
					s = s.Cancelled()
				}
			case In:
			}
			s, _ = s.After(rapid.SampledFrom([]Outcome{Success, Failure, Timeout, Refusal}).Draw(t, "outcome"), now, p)
			if s.Verdict(now) != In {
				require.LessOrEqual(t, s.Until().Sub(now), p.Longest)
				require.Equal(t, Trial, s.Verdict(now.Add(p.Longest+trialLimit)))
			}
		}
		// Whatever happened before, a trial that succeeds ends the ejection.
		now = now.Add(p.Longest + trialLimit)
		if s.Verdict(now) == Trial {
			s = s.Try(now)
		}
		s, _ = s.After(Success, now, p)
		require.Equal(t, In, s.Verdict(now))
	})
}
