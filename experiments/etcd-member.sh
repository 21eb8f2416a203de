#!/bin/sh
# A member of an etcd cluster, in a node of `orderbed up`: sh etcd-member.sh MEMBER_IP...
# It takes the address that its node has; a node that is none of the members rests.
mine=$(hostname -I | cut -d ' ' -f 1)
cluster=
for ip in "$@"; do
    cluster=$cluster${cluster:+,}$ip=http://$ip:2380
done
case " $* " in
    *" $mine "*) ;;
    *) exec sleep infinity ;;
esac
exec etcd --name "$mine" --data-dir /dev/shm/etcd --initial-cluster "$cluster" \
    --listen-peer-urls "http://$mine:2380" --initial-advertise-peer-urls "http://$mine:2380" \
    --listen-client-urls "http://$mine:2379" --advertise-client-urls "http://$mine:2379"
