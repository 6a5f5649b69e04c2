package scenario

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// samplesOf returns a sample a second, with these numbers of wanted replicas, all of them ready.
func samplesOf(wanted ...int) (out []followSample) {
	for i, n := range wanted {
		out = append(out, followSample{at: time.Duration(i) * time.Second, wanted: n, ready: n, load: loadNow{known: true, p95: 200 * time.Millisecond}})
	}
	return out
}

func TestJudge_CountsTurnsOfWanted(t *testing.T) {
	for want, wanted := range [][]int{{1, 1, 2, 2, 4, 8}, {1, 4, 8, 8, 6, 6, 5}, {8, 4, 4, 5, 4}} {
		v := judgeSpan(samplesOf(wanted...), followSpan{to: time.Minute}, time.Second)
		require.Equal(t, want, v.turns, "%v", wanted)
	}
}

func TestJudge_RecoversWhenP95StaysBelowTheTarget(t *testing.T) {
	samples := samplesOf(1, 1, 1, 1, 1, 1)
	span := followSpan{to: 6 * time.Second}
	require.Zero(t, judgeSpan(samples, span, time.Second).recovered)
	samples[1].load.p95, samples[3].load.p95 = 2*time.Second, 3*time.Second
	v := judgeSpan(samples, span, time.Second)
	require.True(t, v.back)
	require.Equal(t, 4*time.Second, v.recovered)
	require.Equal(t, 3*time.Second, v.worst)
	samples[5].load.p95 = 2 * time.Second
	v = judgeSpan(samples, span, time.Second)
	require.False(t, v.back)
	require.Equal(t, span.to, v.recovered)
}

func TestJudge_TellsChangesDuringARollout(t *testing.T) {
	samples := samplesOf(2, 4, 6, 6, 3, 2)
	samples[2].rolling, samples[3].rolling = true, true
	v := judgeSpan(samples, followSpan{to: time.Minute}, time.Second)
	require.Equal(t, []int{1, 0, 2}, []int{v.raised, v.lowered, v.loweredAfter})
}

func TestSpan_HasTheSamplesWithinIt(t *testing.T) {
	samples := samplesOf(0, 1, 2, 3, 4)
	require.Equal(t, samples[1:3], followSpan{from: time.Second, to: 3 * time.Second}.samplesIn(samples))
	require.Empty(t, followSpan{from: time.Hour, to: 2 * time.Hour}.samplesIn(samples))
}

func TestBelowFloor(t *testing.T) {
	for name, c := range map[string]struct {
		wanted, ready []int
		wrong         string
	}{
		"replicas that start are not missed":                  {[]int{2, 4, 8, 8}, []int{2, 2, 5, 8}, ""},
		"replicas that are not wanted may end":                {[]int{8, 4, 4}, []int{8, 8, 4}, ""},
		"a replica that is wanted is missed":                  {[]int{4, 4, 4}, []int{4, 3, 4}, "floor of 4"},
		"a replica is missed while more are wanted":           {[]int{2, 6, 6}, []int{2, 3, 2}, "floor of 3"},
		"the minimum holds whatever was wanted":               {[]int{2, 1}, []int{2, 1}, "floor of 2"},
		"replicas that are removed and added again may start": {[]int{8, 4, 8, 8}, []int{8, 4, 4, 8}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			samples := samplesOf(c.wanted...)
			for i, n := range c.ready {
				samples[i].ready = n
			}
			wrong, _ := belowFloor(samples, 2)
			if c.wrong == "" {
				require.Empty(t, wrong)
			} else {
				require.Contains(t, wrong, c.wrong)
			}
		})
	}
	samples := samplesOf(2)
	samples[0].versions = map[int32]followVersion{1: {2, 2, 50}, 2: {1, 0, 50}}
	wrong, margin := belowFloor(samples, 2)
	require.Contains(t, wrong, "v2 has 50 percent")
	require.Zero(t, margin)
}

func TestNeeded_IsBounded(t *testing.T) {
	for load, want := range map[float64]int{0: 1, 1: 1, 6: 1, 7: 2, 64: 11, 1000: 20} {
		require.Equal(t, want, neededReplicas(load, 1), load)
	}
}

func TestSeries_IsATableAndAPlot(t *testing.T) {
	f := followSeries{title: "t", regions: []string{"eu"}, samples: [][]followSample{samplesOf(1, 2)}, spans: []followSpan{{name: "64 clients", to: time.Minute}}, target: time.Second}
	f.samples[0][1].versions = map[int32]followVersion{1: {2, 1, 100}}
	table, err := f.toCSV()
	require.NoError(t, err)
	require.Equal(t, "seconds,region,span,load_clients,sent_per_second,waiting,wanted,ready,p95_first_token_ms,limit,rolling,versions\n"+
		"0.00,eu,64 clients,0,0.0,0,1,1,200,,false,\n1.00,eu,64 clients,0,0.0,0,2,2,200,,false,v1 1 of 2 ready 100 %\n", string(table))
	require.Contains(t, string(f.chartOf().SVG()), "64 clients")
}

func TestFollow_RefusesInvalidSteps(t *testing.T) {
	for text, wrong := range map[string]string{"64": "CLIENTS:DURATION", "x:1s": "CLIENTS", "-1:1s": "CLIENTS", "1:soon": "DURATION", "1:0s": "DURATION"} {
		_, err := parseStep(text)
		require.ErrorContains(t, err, "--steps="+text)
		require.ErrorContains(t, err, wrong)
	}
	step, err := parseStep("0.5:90s")
	require.NoError(t, err)
	require.Equal(t, loadStep{0.5, 90 * time.Second}, step)
}

func TestFollow_RefusesRolloutsWithoutAChangeOfReplicas(t *testing.T) {
	_, err := (&Follow{Rollouts: []string{"sideways"}}).parseRollouts()
	require.ErrorContains(t, err, "--rollouts=sideways: has to be one of rolling, canary")
	_, err = (&Follow{Regions: 2, Rollouts: []string{"canary"}, Low: 8, High: 24}).parseRollouts()
	require.ErrorContains(t, err, "--low=8 and --high=24 need 2 and 2 replicas")
	rollouts, err := (&Follow{Regions: 1, Rollouts: []string{"canary"}, Low: 8, High: 48}).parseRollouts()
	require.NoError(t, err)
	require.Len(t, rollouts, 1)
}
