package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// cluster uses the servers of a store with go-redis's client for clusters. The caller moves parts of the store before
// each line that it writes.
func cluster(address string) {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{address}})
	defer client.Close()
	for i := 0; i < 300; i++ {
		check("Set", client.Set(ctx, "key:"+strconv.Itoa(i), i, 0).Err(), nil, nil)
	}
	pipe := client.Pipeline()
	for i := 0; i < 300; i++ {
		pipe.Incr(ctx, "key:"+strconv.Itoa(i))
	}
	_, err := pipe.Exec(ctx)
	check("Pipeline", err, nil, nil)
	_, err = client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "{a}1", 1, 0)
		pipe.Set(ctx, "{a}2", 2, 0)
		return nil
	})
	check("TxPipelined", err, nil, nil)
	var keys, nodes int64
	err = client.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		count, err := node.DBSize(ctx).Result()
		atomic.AddInt64(&keys, count)
		atomic.AddInt64(&nodes, 1)
		return err
	})
	check("DBSize", err, []int64{keys, nodes}, []int64{302, 3})
	info, err := client.ClusterInfo(ctx).Result()
	check("ClusterInfo", err, len(info) > 0, true)
	shards, err := client.ClusterShards(ctx).Result()
	check("ClusterShards", err, len(shards), 3)
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for round := 2; lines.Scan(); round++ {
		for i := 0; i < 300; i++ {
			value, err := client.Incr(ctx, "key:"+strconv.Itoa(i)).Result()
			check("Incr", err, value, int64(i+round))
		}
		fmt.Println("done", round-1)
	}
	fmt.Println("the end")
}
