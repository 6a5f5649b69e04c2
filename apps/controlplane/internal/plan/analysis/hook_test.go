package analysis

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestParseAnswer_AcceptsOnlyAVerdict(t *testing.T) {
	for name, c := range map[string]struct {
		body   string
		want   *Answer
		figure *float64
	}{
		"pass":                    {`{"verdict": "pass"}`, &Answer{Verdict: Passed}, nil},
		"fail, and why":           {`{"verdict": "fail", "message": "2 of 100", "figure": 0.98}` + "\n", &Answer{Failed, "2 of 100"}, new(0.98)},
		"not yet":                 {`{"verdict": "inconclusive", "message": "it runs", "eta": 5}`, &Answer{Inconclusive, "it runs"}, nil},
		"a figure of null":        {`{"verdict": "pass", "figure": null}`, &Answer{Verdict: Passed}, nil},
		"a message for terminals": {`{"verdict": "fail", "message": "a\u001b[2J\r\nb\u202e\u0000c"}`, &Answer{Failed, "a [2J b c"}, nil},

		"nothing":            {``, nil, nil},
		"an HTML page":       {`<html>pass</html>`, nil, nil},
		"another verdict":    {`{"verdict": "PASSED"}`, nil, nil},
		"no verdict":         {`{"message": "fine"}`, nil, nil},
		"a verdict of true":  {`{"verdict": true}`, nil, nil},
		"null":               {`null`, nil, nil},
		"a list":             {`[{"verdict": "pass"}]`, nil, nil},
		"half of it":         {`{"verdict": "pass"`, nil, nil},
		"more than one":      {`{"verdict": "pass"}{"verdict": "fail"}`, nil, nil},
		"text after it":      {`{"verdict": "pass"} fail`, nil, nil},
		"a figure in quotes": {`{"verdict": "pass", "figure": "1"}`, nil, nil},
		"an infinite figure": {`{"verdict": "pass", "figure": 1e999}`, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			said, figure, err := ParseAnswer([]byte(c.body))
			require.Equal(t, c.want, said)
			require.Equal(t, c.figure, figure)
			require.Equal(t, c.want == nil, err != nil)
			if err != nil {
				require.NotContains(t, err.Error(), "html", "errors do not quote the body")
			}
		})
	}
}

func TestJudge_AWebHookOnlyByItsVerdict(t *testing.T) {
	hook := &windlassv1.AnalysisCheck{Name: "smoke", Webhook: &windlassv1.WebHook{Url: "https://hook.test"}}
	figures := &windlassv1.AnalysisCheck{Max: new(0.5)}
	for name, c := range map[string]struct {
		check   *windlassv1.AnalysisCheck
		figures Figures
		want    Verdict
		says    string
	}{
		"passes":               {hook, Figures{Answer: &Answer{Verdict: Passed}}, Passed, "the webhook passes it"},
		"fails, on a figure":   {hook, Figures{New: new(0.4), Answer: &Answer{Failed, "wrong answers"}}, Failed, "0.4: wrong answers"},
		"cannot tell":          {hook, Figures{Answer: &Answer{Inconclusive, "it still runs"}}, Inconclusive, "it still runs"},
		"a problem":            {hook, Figures{Problem: "it is unreachable", Answer: &Answer{Verdict: Passed}}, Inconclusive, "it is unreachable"},
		"was not called":       {hook, Figures{}, Inconclusive, "has not answered"},
		"a figure, no verdict": {hook, Figures{New: new(0.1)}, Inconclusive, "has not answered"},
		"a verdict, no figure": {figures, Figures{Answer: &Answer{Verdict: Passed}}, Inconclusive, "there is no figure"},
	} {
		t.Run(name, func(t *testing.T) {
			verdict, text := Judge(c.check, c.figures, true)
			require.Equal(t, c.want, verdict)
			require.Contains(t, text, c.says)
		})
	}
	require.True(t, Absolute(hook))
	require.False(t, Compares(hook))
}

func TestCall_HasTheDocumentedFields(t *testing.T) {
	call := Call{
		ID: "3f", Attempt: 1, Check: "smoke", Workspace: Named{"ws_1", "acme"}, Project: Named{"prj_1", "search"},
		Environment: Named{"env_1", "production"}, App: Named{"app_1", "chat"}, RolloutID: "rol_1",
		Deployment: Release{"dep_2", 2}, OldDeployment: &Release{"dep_1", 1},
		Region: "eu-west-1", Wave: "canary", Stage: StageStep, Step: 1, Since: 1767225600000,
	}
	got, err := json.Marshal(call)
	require.NoError(t, err)
	require.JSONEq(t, `{
		"id": "3f", "attempt": 1, "check": "smoke",
		"workspace": {"id": "ws_1", "name": "acme"}, "project": {"id": "prj_1", "name": "search"},
		"environment": {"id": "env_1", "name": "production"}, "app": {"id": "app_1", "name": "chat"},
		"rolloutId": "rol_1",
		"deployment": {"id": "dep_2", "version": 2}, "oldDeployment": {"id": "dep_1", "version": 1},
		"region": "eu-west-1", "wave": "canary", "stage": "step", "step": 1, "since": 1767225600000
	}`, string(got))
	call.Stage, call.Step, call.OldDeployment = StageBake, 0, nil
	got, err = json.Marshal(call)
	require.NoError(t, err)
	require.NotContains(t, string(got), `"step":`)
	require.NotContains(t, string(got), "oldDeployment")
}

func TestCallID_IsUniqueAndStable(t *testing.T) {
	id := CallID
	seen := map[string]bool{}
	for _, one := range []string{
		id("rol_1", "reg_1", "smoke", 5, 1), id("rol_2", "reg_1", "smoke", 5, 1), id("rol_1", "reg_2", "smoke", 5, 1),
		id("rol_1", "reg_1", "load", 5, 1), id("rol_1", "reg_1", "smoke", 6, 1), id("rol_1", "reg_1", "smoke", 5, 2),
		id("rol_1", "reg_1", "smoke", 51, 0), id("rol_1", "reg_1smoke", "", 5, 1),
	} {
		require.False(t, seen[one])
		require.Len(t, one, 32)
		seen[one] = true
	}
	require.True(t, seen[id("rol_1", "reg_1", "smoke", 5, 1)])
}

func TestParseHookURL_RefusesInvalidURLsWithoutQuotingThem(t *testing.T) {
	for _, text := range []string{
		"", "hook", "hook.test/x", "ftp://hook.test", "http://", "https:///path", "http://:80", "file:///etc/passwd", "://secret",
		"http://ada:secret@hook.test", "http://secret@hook.test", "https://hook.test/#secret", "http://hook.test:port/secret", "http://[::1/secret",
		"gopher://hook.test/secret", "HTTP\x00://secret",
	} {
		_, err := ParseHookURL(text)
		require.Error(t, err, text)
		require.NotContains(t, err.Error(), "secret")
	}
	for _, text := range []string{"http://hook.test", "https://hook.test:8443/a/b?c=d", "HTTPS://hook.test", "http://[2001:db8::1]:80/"} {
		_, err := ParseHookURL(text)
		require.NoError(t, err, text)
	}
}
