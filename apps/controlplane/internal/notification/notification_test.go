package notification

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

func failed() model.Delivery {
	return model.Delivery{
		EndpointID: "nte_1", MessageID: "ntf_1", Kind: model.NotifyRolloutFailed, At: 1_800_000_000_123, What: "RolloutFailed",
		Why: "CrashLoop: \x1b[31m<exit> & 1\nagain", Who: "windlass", Workspace: "acme", Project: "default", Environment: "production",
		App: "chat", AppID: "app_1", Version: 7, RolloutID: "rol_1", DeploymentID: "dep_1", Events: 1, Apps: 1, AppNames: "default/production/chat",
	}
}

func TestBody_IsACloudEvent(t *testing.T) {
	body, contentType, err := Body(failed(), model.FormatCloudEvents)
	require.NoError(t, err)
	require.Equal(t, "application/cloudevents+json", contentType)
	require.JSONEq(t, `{
		"specversion": "1.0", "id": "ntf_1", "source": "/workspaces/acme", "type": "run.windlass.rollout.failed.v1",
		"subject": "apps/default/production/chat", "time": "2027-01-15T08:00:00.123Z", "datacontenttype": "application/json",
		"data": {
			"what": "RolloutFailed", "why": "CrashLoop: [31m<exit> & 1 again", "who": "windlass", "workspace": "acme", "project": "default",
			"environment": "production", "app": "chat", "app_id": "app_1", "version": 7, "rollout_id": "rol_1", "deployment_id": "dep_1",
			"events": 1, "apps": 1, "app_names": ["default/production/chat"]
		}
	}`, string(body))
}

func TestBody_IsTextForSlack(t *testing.T) {
	text := func(d model.Delivery) string {
		body, contentType, err := Body(d, model.FormatSlack)
		require.NoError(t, err)
		require.Equal(t, "application/json", contentType)
		var message map[string]string
		require.NoError(t, json.Unmarshal(body, &message))
		require.Len(t, message, 1)
		return message["text"]
	}
	require.Equal(t, "*Rollout failed*: default/production/chat v7: CrashLoop: [31m&lt;exit&gt; &amp; 1 again", text(failed()))
	require.Equal(t, "*Region unreachable*: eu, with 30 apps: a/b/c, a/b/d and others: gone", text(model.Delivery{
		Kind: model.NotifyRegionUnreachable, Region: "eu", Apps: 30, AppNames: "a/b/c a/b/d", Events: 1, Why: "gone",
	}))
	many := failed()
	many.Events, many.Apps, many.AppNames, many.Why = 25, 2, "a/b/c default/production/chat", "no"
	require.Equal(t, "*Rollout failed*: 25 times, of 2 apps: a/b/c, default/production/chat. The first: default/production/chat: no", text(many))
	require.Equal(t, "*Test*: hello", text(model.Delivery{Kind: model.NotifyTest, Why: "hello", Events: 1}))
}

func TestKinds_HaveATypeAndATitle(t *testing.T) {
	for _, k := range append(model.NotificationKinds(), model.NotifyTest) {
		require.NotEmpty(t, Type(k))
		require.NotEmpty(t, titles[k])
	}
}

// The vector of the specification's reference libraries.
func TestSign_IsTheStandardScheme(t *testing.T) {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	target := Target{Secrets: []SigningSecret{{Value: secret}}}
	got, err := target.Sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, []byte(`{"test": 2432232314}`))
	require.NoError(t, err)
	require.Equal(t, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", got)
}

func TestSign_HasTwoSignaturesDuringARotation(t *testing.T) {
	first, second, third := NewSecret([]byte("one")), NewSecret([]byte("two")), NewSecret([]byte("three"))
	signature := func(target Target, at int64) string {
		text, err := target.Sign("ntf_1", at, []byte("{}"))
		require.NoError(t, err)
		return text
	}
	alone := func(secret string, at int64) string {
		return signature(Target{Secrets: []SigningSecret{{Value: secret}}}, at)
	}
	target := Target{URL: "https://example.com"}.Rotate(first, 0)
	require.Equal(t, alone(first, 10), signature(target, 10))
	target = target.Rotate(second, 20_000)
	require.Equal(t, alone(second, 19)+" "+alone(first, 19), signature(target, 19))
	require.Equal(t, alone(second, 20), signature(target, 20))
	target = target.Rotate(third, 30_000)
	require.Equal(t, alone(third, 21)+" "+alone(second, 21), signature(target, 21))
	encoded, err := target.Encode()
	require.NoError(t, err)
	again, err := ParseTarget(encoded)
	require.NoError(t, err)
	require.Equal(t, target, again)
	_, err = Target{}.Sign("ntf_1", 1, nil)
	require.Error(t, err)
}

func TestMerge_MakesOneCallOfMany(t *testing.T) {
	var due []model.Delivery
	add := func(n int, tweak func(*model.Delivery)) {
		for range n {
			d := failed()
			d.MessageID = fmt.Sprintf("ntf_%03d", len(due))
			d.AppNames = fmt.Sprintf("default/production/app-%03d", len(due)%25)
			tweak(&d)
			due = append(due, d)
		}
	}
	none := func(*model.Delivery) {}
	add(20, none)
	require.Len(t, Merge(due), 20, "a few are sent one by one")
	add(80, none)
	add(3, func(d *model.Delivery) { d.Attempts = 1 })
	add(2, func(d *model.Delivery) { d.RegionID = "reg_1" })
	add(1, func(d *model.Delivery) { d.Kind = model.NotifyTest })
	add(1, func(d *model.Delivery) { d.EndpointID = "nte_2" })
	calls := Merge(due)
	require.Len(t, calls, 8)
	first := calls[0]
	require.Equal(t, []any{"ntf_000", int32(100), int32(25)}, []any{first.Delivery.MessageID, first.Delivery.Events, first.Delivery.Apps})
	require.Len(t, first.Merged, 99)
	require.Len(t, strings.Fields(first.Delivery.AppNames), 20)
	told := map[string]bool{}
	for _, c := range calls {
		for _, id := range append(c.Merged, c.Delivery.MessageID) {
			require.False(t, told[id], id)
			told[id] = true
		}
	}
	require.Len(t, told, len(due))
}
