package analysis

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

var subject = Subject{App: "chat", AppID: "app_1", Deployment: "dep_2", Version: 2, Region: "eu", Window: 90 * time.Second}

func TestExpand_ReplacesVariablesAndRefusesUnknownOnes(t *testing.T) {
	got, err := Expand(`a{{{selector}}} b{app="{{app}}",id="{{ app_id }}"}[{{window}}] {{deployment}} {{version}} {{region}} {x="y"}`, subject)
	require.NoError(t, err)
	require.Equal(t, `a{windlass_deployment="dep_2",windlass_region="eu"} b{app="chat",id="app_1"}[90s] dep_2 2 eu {x="y"}`, got)
	for _, v := range Variables() {
		_, ok := subject.valueOf(v)
		require.True(t, ok, v)
	}
	_, err = Expand("up{{{pod}}}", subject)
	require.EqualError(t, err, "{{pod}} is not a variable")
	_, err = Expand("up {{region", subject)
	require.ErrorContains(t, err, "is not closed")
	for _, query := range []string{"", "{", "{{{", "}}", "{{}}"} {
		_, _ = Expand(query, subject) // it must return
	}
	short := subject
	short.Window = 1500 * time.Millisecond
	got, err = Expand("{{window}}", short)
	require.NoError(t, err)
	require.Equal(t, "1500ms", got)
}

func TestAsk_ExpandsEveryTemplate(t *testing.T) {
	for n := range windlassv1.AnalysisCheck_Template_name {
		c := &windlassv1.AnalysisCheck{Template: windlassv1.AnalysisCheck_Template(n)}
		if n == 0 {
			continue
		}
		WithDefaults(c)
		require.NotEmpty(t, c.GetName())
		require.Positive(t, c.GetMinSamples(), c.GetName())
		q, err := Ask(c, subject, nil)
		require.NoError(t, err)
		require.Contains(t, q.New, `windlass_deployment="dep_2"`)
		require.Contains(t, q.NewSamples, `windlass_region="eu"`)
		require.Empty(t, q.Old)
	}
}

func TestJudge(t *testing.T) {
	check := func(edit func(*windlassv1.AnalysisCheck)) *windlassv1.AnalysisCheck {
		c := &windlassv1.AnalysisCheck{}
		edit(c)
		return c
	}
	most := check(func(c *windlassv1.AnalysisCheck) { c.Max, c.MinSamples = new(0.05), 10 })
	least := check(func(c *windlassv1.AnalysisCheck) { c.Min = new(0.5) })
	ratio := check(func(c *windlassv1.AnalysisCheck) { c.VersusOld = &windlassv1.VersusOld{MaxRatio: new(1.5)} })
	both := check(func(c *windlassv1.AnalysisCheck) {
		c.Max, c.VersusOld = new(1.0), &windlassv1.VersusOld{MaxDifference: new(0.1), MinRatio: new(0.5)}
	})
	figures := func(v ...float64) (f Figures) {
		for i, to := range []**float64{&f.New, &f.NewSamples, &f.Old, &f.OldSamples} {
			if i < len(v) {
				*to = &v[i]
			}
		}
		return f
	}
	for name, c := range map[string]struct {
		check     *windlassv1.AnalysisCheck
		figures   Figures
		oldServes bool
		want      Verdict
		says      string
	}{
		"within":                       {most, figures(0.05, 10), true, Passed, "0.05 on 10 samples"},
		"beyond":                       {most, figures(0.06, 10), true, Failed, "figure 0.06, at most 0.05"},
		"hardly beyond":                {most, figures(0.05000000001, 10), true, Failed, "figure 0.05000000001, at most 0.05"},
		"extrapolated to nearly ten":   {most, figures(0.01, 9.6), true, Passed, ""},
		"too few":                      {most, figures(0.5, 9), true, Inconclusive, "9 samples of the 10"},
		"none":                         {most, Figures{}, true, Inconclusive, "0 samples"},
		"samples without a figure":     {most, Figures{NewSamples: new(20.0)}, true, Inconclusive, "there is no figure of the new version"},
		"no number":                    {most, figures(math.NaN(), 20), true, Inconclusive, "not a finite number"},
		"infinite":                     {least, figures(math.Inf(1)), true, Inconclusive, "not a finite number"},
		"a problem":                    {most, Figures{Problem: "it is unreachable", New: new(0.0)}, true, Inconclusive, "it is unreachable"},
		"below":                        {least, figures(0.4), true, Failed, "at least 0.5"},
		"ratio":                        {ratio, figures(0.3, 0, 0.2), true, Passed, "the old version's is 0.2"},
		"ratio beyond":                 {ratio, figures(0.31, 0, 0.2), true, Failed, "ratio 1.55, at most 1.5"},
		"0 against 0":                  {ratio, figures(0, 0, 0), true, Passed, ""},
		"more than 0 against 0":        {ratio, figures(0.001, 0, 0), true, Failed, "ratio +Inf"},
		"old unknown":                  {ratio, Figures{New: new(1.0)}, true, Inconclusive, "there is no figure of the old version"},
		"old does not serve":           {ratio, figures(1), false, Inconclusive, "no bound of the check applies here"},
		"one bound of several":         {both, figures(0.9, 0, 0.5), true, Failed, "difference 0.4, at most 0.1"},
		"the other bound":              {both, figures(0.1, 0, 0.5), true, Failed, "ratio 0.2, at least 0.5"},
		"all of them":                  {both, figures(0.5, 0, 0.5), true, Passed, ""},
		"the absolute bound in a bake": {both, figures(0.9), false, Passed, "0.9"},
	} {
		t.Run(name, func(t *testing.T) {
			verdict, text := Judge(c.check, c.figures, c.oldServes)
			require.Equal(t, c.want, verdict, text)
			require.Contains(t, text, c.says)
		})
	}
}
