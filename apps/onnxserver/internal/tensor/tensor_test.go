package tensor

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJSON_IsReadAndWrittenWithoutLoss(t *testing.T) {
	for datatype, list := range map[string]string{
		Bool: `[true,false]`, Int8: `[-128,127]`, Int16: `[-32768,7]`, Int32: `[-2147483648,7]`, Int64: `[-9223372036854775808,9007199254740993]`,
		Uint8: `[0,255]`, Uint16: `[0,65535]`, Uint32: `[0,4294967295]`, Uint64: `[0,18446744073709551615]`,
		FP32: `[0.1,-1e+30]`, FP64: `[0.1,1e+300]`, Bytes: `["a","\u003cb\"é"]`,
	} {
		data, err := ParseJSON(datatype, json.RawMessage(list))
		require.NoError(t, err, datatype)
		one := Tensor{Name: "x", Datatype: datatype, Shape: []int64{2}, Data: data}
		require.NoError(t, one.Check(), datatype)
		text, err := one.AppendJSON(nil)
		require.NoError(t, err, datatype)
		require.Equal(t, list, string(text))
		require.Error(t, Tensor{Datatype: datatype, Shape: []int64{3}, Data: data}.Check(), datatype)
	}
}

func TestParseJSON_RefusesValuesOfOtherTypes(t *testing.T) {
	for _, c := range [][2]string{
		{Int8, `[128]`},
		{Int8, `[1.5]`},
		{Uint8, `[-1]`},
		{FP32, `[1e39]`},
		{FP32, `["1"]`},
		{Bool, `[1]`},
		{Bytes, `[1]`},
		{Int64, `[null]`},
		{FP32, `{"a":1}`},
		{FP32, `[{"a":1}]`},
		{FP32, `5`},
		{FP32, ``},
		{FP32, `[1`},
		{"FP16", `[1]`},
	} {
		_, err := ParseJSON(c[0], json.RawMessage(c[1]))
		require.Error(t, err, c)
	}
}

func TestFits_ComparesShapes(t *testing.T) {
	info := Info{Name: "x", Datatype: FP32, Shape: []int64{-1, 3}}
	require.NoError(t, info.Fits(Tensor{Datatype: FP32, Shape: []int64{7, 3}}))
	for _, shape := range [][]int64{{7, 4}, {3}, {1, 7, 3}, {}} {
		require.Error(t, info.Fits(Tensor{Datatype: FP32, Shape: shape}), shape)
	}
	scalar := Info{Name: "x", Datatype: Int64, Shape: []int64{}}
	require.NoError(t, scalar.Fits(Tensor{Datatype: Int64, Shape: []int64{1}}))
	require.NoError(t, scalar.Fits(Tensor{Datatype: Int64}))
	require.Error(t, scalar.Fits(Tensor{Datatype: Int64, Shape: []int64{2}}))
}

func TestElements_StayInTheData(t *testing.T) {
	for _, data := range []string{"\x01", "\x05\x00\x00\x00abc", "\xff\xff\xff\xffabc"} {
		_, err := Tensor{Data: []byte(data)}.Elements()
		require.Error(t, err, "%q", data)
	}
}

func FuzzParseJSON(f *testing.F) {
	f.Add(FP32, `[1, [2.5]]`)
	f.Add(Bytes, `["a"]`)
	f.Fuzz(func(t *testing.T, datatype, list string) {
		data, err := ParseJSON(datatype, json.RawMessage(list))
		if err != nil {
			return
		}
		_, err = Tensor{Datatype: datatype, Data: data}.AppendJSON(nil)
		require.NoError(t, err)
	})
}
