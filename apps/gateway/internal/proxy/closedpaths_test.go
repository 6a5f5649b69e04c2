package proxy

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClosedPaths_EachReadingCounts(t *testing.T) {
	closed := []string{"/v2/repository", "/v1/load_lora_adapter"}
	for _, p := range []string{
		"/v2/repository/index", "/v2/repository", "/v2/repository/models/fraud/load", "/v1/load_lora_adapter", "/v1/load_lora_adapter/",
		"/V2/Repository/index", "//v2/repository/index", "/v2//repository/index", "/v2/./repository/index", "/x/../v2/repository/index",
		"/v2/models/../repository/index", "/v2/repository/../models/fraud/infer", "/v2/%72epository/index", "/v2%2frepository%2Findex",
		"/v2/%2572epository/index", "/v2/%252572epository/index", "/v2%5crepository/index", `/v2\repository\index`, "/v2;a=b/repository;c/index", "/v2/%2e%2e/v2/repository/index",
		"/v2/repository%3fa=b",
		"/v2//../repository/index", "/v2/;/../repository/index", "/v2/a%2fb/../%72epository/index", `/v2/\/../repository/index`, "/v2/%2e%2e;x/repository",
	} {
		require.True(t, isClosed(p, closed), p)
	}
	for _, p := range []string{
		"/", "/v2", "/v2/models/fraud/infer", "/v2/models/repository/infer", "/v1/completions", "/v2/models/a%20b/infer", "/v2/models/100%25/infer",
		"/v2/models/x?y=/v2/repository", "/files/v2/repository", "/v2/models/a..b/infer", "/v2/models/fraud/infer?q=/../v2",
	} {
		require.False(t, isClosed(p, closed), p)
	}
	require.False(t, isClosed("/a/../v2/repository", nil), "no path is closed")
}
