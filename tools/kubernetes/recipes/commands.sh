# The programs of the node, in the order in which they start. All live in namespaces of their own.
etcd --data-dir=$folder/etcd --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379
containerd --config=$folder/containerd.toml
kube-apiserver --etcd-servers=http://127.0.0.1:2379 --secure-port=6443 --cert-dir=$folder/certificates --advertise-address=10.244.0.1 --token-auth-file=$folder/tokens.csv --authorization-mode=RBAC --service-cluster-ip-range=10.96.0.0/16 --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=$folder/sa.key --service-account-signing-key-file=$folder/sa.key --kubelet-preferred-address-types=InternalIP
kube-controller-manager --kubeconfig=$folder/kubeconfig.yaml --service-account-private-key-file=$folder/sa.key --root-ca-file=$folder/certificates/apiserver.crt --use-service-account-credentials=true --leader-elect=false
kube-scheduler --kubeconfig=$folder/kubeconfig.yaml --leader-elect=false
kubelet --kubeconfig=$folder/kubeconfig.yaml --config=$folder/kubelet.yaml --hostname-override=node1 --node-ip=10.244.0.1 --root-dir=$folder/kubelet --cert-dir=$folder/kubelet-certificates
kube-proxy --kubeconfig=$folder/kubeconfig.yaml --hostname-override=node1 --cluster-cidr=10.244.0.0/24 --masquerade-all --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0
coredns -conf=$folder/Corefile
